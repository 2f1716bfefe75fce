"""Numbers with which a laboratory would show nothing, or end in a traceback, are refused."""

import pytest
from opened import opened


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("evocua", "--seeds 0"),
        ("evocua", "--rounds 0"),
        ("masked_diffusion", "--held-out 0"),
        ("trace_capability", "--seeds 0"),
        ("trace_capability", "--held-out 0"),
        ("trace_repair", "--steps 0"),
    ],
)
def test_less_than_one_is_refused(name, words, refused):
    assert f"{words.split()[0]} must be at least 1" in refused(opened(name).main, words.split())
