import torch
from builders import flat_batch, ragged_batch, run, tokens_of

from strop.parts.advantage.baseline.subtract_kl_to_reference import SubtractKlToReference


def test_worked_example():
    # rollout 0: (.2 + .3) nats times .1 = .05 off 1; rollout 1: -.4 nats give .04
    batch = flat_batch(
        (2, 1), advantage_B=[1.0, 0.0], logp_old_T=[-1.0, -2.0, -0.9], logp_ref_T=[-1.2, -2.3, -0.5]
    )
    expected = torch.tensor([0.95, 0.04], dtype=torch.float64)
    torch.testing.assert_close(run(SubtractKlToReference(0.1), batch).value, expected)


def test_matches_slow_loop():
    batch = ragged_batch(4)
    expected = batch["advantage_B"].clone()
    for i in range(batch.size("B")):
        for t in tokens_of(batch, i):
            expected[i] -= 0.05 * (batch["logp_old_T"][t] - batch["logp_ref_T"][t])
    found = run(SubtractKlToReference(), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_edges():
    batch = flat_batch(
        (1, 1), advantage_B=[1.0, 0.5], logp_old_T=[-1.0, -1.0], logp_ref_T=[-2.0, -2.0]
    )
    batch = batch.set(mask_T=torch.tensor([False, True]))
    assert run(SubtractKlToReference(0.5), batch).value.tolist() == [1.0, 0.0]
