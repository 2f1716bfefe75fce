"""Which prompts are kept, decided only by the outcomes of their answers."""

import pytest

from strop.parts.sampling.draw_solvable_prompts import DrawSolvablePrompts
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [False, True, True, False]),
        ({"drop_mastered": True}, [False, False, True, False]),
        ({"threshold": -1, "spread": 0.0}, [False, False, True, True]),
        ({"threshold": -1, "spread": 0.25}, [False, False, True, False]),
        ({"threshold": 1, "spread": 0.0}, [False, False, False, False]),
        ({"success": 0.25}, [False, True, True, True]),
    ],
)
def test_what_teaches(fields, kept):
    prompts = [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.25, 0.5]]
    part = DrawSolvablePrompts(**fields)
    assert [part._teaches(outcomes) for outcomes in prompts] == kept


def test_spread_is_a_difference():
    with pytest.raises(UserError, match=r"spread must be at least -1"):
        DrawSolvablePrompts(spread=-1.5)
