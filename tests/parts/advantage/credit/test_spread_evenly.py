import torch
from builders import ragged_batch, run

from strop.parts.advantage.credit.spread_evenly import SpreadEvenly


def test_every_policy_token_has_its_rollouts_advantage():
    batch = ragged_batch(1)
    found = run(SpreadEvenly(), batch).value
    for t in range(batch.size("T")):
        rollout = int(batch["rollout_T"][t])
        expected = float(batch["advantage_B"][rollout]) if batch["mask_T"][t] else 0.0
        assert float(found[t]) == expected
    assert float(found.abs().sum()) > 0
    assert torch.isfinite(found).all()
