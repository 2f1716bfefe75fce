import pytest
import torch
from builders import flat_batch, run

from strop.parts.advantage.scale.scale_by_signal_share import ScaleBySignalShare
from strop.support.errors import UserError

# two groups, rewards (1, 0, 0, 0) and (1, 1, 1, 1), centred
BATCH = flat_batch(
    (1,) * 8,
    groups=(0,) * 4 + (1,) * 4,
    reward_B=[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0],
    advantage_B=[0.75, -0.25, -0.25, -0.25, 0.0, 0.0, 0.0, 0.0],
)


def test_worked_example():
    # five rewards of eight are not 0: 8 / 5; four advantages are not 0: 8 / 4
    found = run(ScaleBySignalShare(), BATCH)
    assert found.value.tolist() == pytest.approx([1.2, -0.4, -0.4, -0.4, 0, 0, 0, 0])
    assert found.metrics == {"advantage/signal_factor": 1.6}
    found = run(ScaleBySignalShare(0.5, "paper"), BATCH)
    assert found.value.tolist() == pytest.approx([3.0, -1.0, -1.0, -1.0, 0, 0, 0, 0])


def test_edges():
    silent = BATCH.set(reward_B=torch.zeros(8), advantage_B=torch.ones(8))
    assert run(ScaleBySignalShare(), silent).value.tolist() == [8.0] * 8
    some = BATCH.set(scored_B=torch.tensor([True, True, False, False] + [False] * 4))
    found = run(ScaleBySignalShare(), some)
    assert found.value.tolist() == [1.5, -0.5] + [0.0] * 6  # two scored, one signal
    with pytest.raises(UserError, match="f_norm"):
        ScaleBySignalShare(0.0)
    with pytest.raises(UserError, match="source_form"):
        ScaleBySignalShare(source_form="verl")
