import pytest
import torch

from strop.parts.advantage.weight.limit_size import LimitSize
from strop.support.errors import UserError


def test_caps_both_sides_and_leaves_the_rest():
    mask_T = torch.tensor([True, True, True, True, False])
    advantage_T = torch.tensor([-9.0, -4.0, 0.5, 5.0, 1.0])
    assert LimitSize()(advantage_T, mask_T).tolist() == [-4, -4, 0.5, 4, 0]
    assert not LimitSize(0.0)(advantage_T, mask_T).any()
    with pytest.raises(UserError, match=r"limit_size\.limit must be at least 0"):
        LimitSize(-1.0)
