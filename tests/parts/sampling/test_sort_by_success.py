import pytest
import torch

from strop.method.part import Draw
from strop.parts.sampling._tracked import Tracked
from strop.parts.sampling.sort_by_success import SortBySuccess
from strop.support.errors import UserError


def tracked(success):
    """uid -> success."""
    uids = sorted(success)
    values = torch.tensor([success[uid] for uid in uids], dtype=torch.float64)
    return Tracked(torch.tensor(uids), values, values, values, torch.ones_like(values))


def test_classes_change_beyond_the_margin_alone():
    part = SortBySuccess()
    assert [part.place(p, None) for p in (0.0, 0.39, 0.4, 0.74, 0.75, 1.0)] == [0, 0, 1, 1, 2, 2]
    assert [part.place(p, 0) for p in (0.42, 0.44, 0.76, 0.79)] == [0, 1, 1, 2]
    assert [part.place(p, 2) for p in (0.73, 0.71, 0.38, 0.36)] == [2, 1, 1, 0]
    code = SortBySuccess(source_form="code")  # one edge decides: that of the lower class
    assert [code.place(p, 0) for p in (0.42, 0.44, 0.76)] == [0, 1, 2]
    assert [code.place(p, 2) for p in (0.73, 0.71, 0.38, 0.36)] == [2, 1, 2, 0]
    with pytest.raises(UserError, match="edges must be rising"):
        SortBySuccess(edges=(0.5, 0.5))


def test_draws_are_told_their_class():
    draws = tuple(Draw(uid, 4) for uid in (1, 2, 3, 9))
    known = tracked({1: 0.0, 2: 0.5, 3: 1.0})
    found = SortBySuccess(set_apart=True)(draws, known, {"bins": {2: 0}})
    assert [draw.columns["bin_B"] for draw in found.value] == [-1, 1, -1, 0]
    assert found.state["bins"] == {1: 0, 2: 1, 3: 2, 9: 0}
    assert found.value[1].why == "class 1 by a success of 0.50"
    assert found.value[3].why == "class 0, new"
    assert found.metrics == {"bins/frac_0": 0.25, "bins/frac_1": 0.25, "bins/frac_2": 0.0}
    plain = SortBySuccess()(draws, known, {"bins": {}})
    assert [draw.columns["bin_B"] for draw in plain.value] == [0, 1, 2, 0]
