import pytest
import torch
from builders import flat_batch, run

from strop.parts.selection.keep_origins import KeepOrigins
from strop.support.errors import UserError


def test_worked_example_and_edges():
    batch = flat_batch((3, 2), origin_T=[0, 2, 1, 2, 4])
    batch = batch.set(mask_T=torch.tensor([True, True, True, False, True]))
    for origins, kept in (((0,), [1, 0, 0, 0, 0]), ((2, 4), [0, 1, 0, 0, 1]), ((3,), [0] * 5)):
        selected = run(KeepOrigins(origins), batch).value
        assert selected.gradient_T.tolist() == [bool(k) for k in kept]
        assert selected.denominator_T.equal(selected.gradient_T)
    for wrong in ((), (7,)):
        with pytest.raises(UserError, match="origins"):
            KeepOrigins(wrong)
