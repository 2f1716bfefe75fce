import pytest
import torch
from builders import flat_batch, run

from strop.parts.curation.drop_rollouts_of_stage import DropRolloutsOfStage
from strop.support.errors import UserError


def test_drops_one_stage():
    batch = flat_batch((1,) * 4).set(stage_B=torch.tensor([0, 1, 2, 1]))
    assert run(DropRolloutsOfStage(), batch).value.keep_B.tolist() == [True, False, True, False]
    assert run(DropRolloutsOfStage(3), batch).value.keep_B.all()
    with pytest.raises(UserError, match="stage"):
        DropRolloutsOfStage(-1)
