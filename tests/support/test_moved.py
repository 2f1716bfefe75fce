import importlib
import importlib.util
import re

import pytest

from strop.support.moved import MOVED


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("from strop.part import require", "strop.method.part"),
        ("from strop import segments", "strop.batch.segments"),
        ("import strop.tasks.environment", "strop.environments"),
        ("import strop.advantage.baseline.subtract_group_mean", "strop.parts.advantage"),
    ],
)
def test_an_old_import_names_the_new_place(line, new):
    with pytest.raises(ImportError, match=rf"strop\.\w+ is {new}.* since strop 0\.2"):
        exec(line, {})


def test_every_new_place_is_there_and_every_other_name_fails_as_ever():
    for old, new in MOVED.items():
        for place in re.findall(r"strop\.[a-z_.]*[a-z]", new):
            assert importlib.util.find_spec(place) is not None, (old, place)
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'strop\.nothing'"):
        importlib.import_module("strop.nothing")
