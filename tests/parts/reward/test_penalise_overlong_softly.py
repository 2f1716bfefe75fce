import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run

from strop.parts.reward.penalise_overlong_softly import PenaliseOverlongSoftly
from strop.support.errors import UserError


def test_worked_example():
    # limit 4096, buffer 512: from 3584 on; (3840 - 3584) / 512 = .5
    lengths_B = torch.tensor([3000, 3584, 3840, 4096, 4608])
    reward_B = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    scored_B = torch.ones(5, dtype=torch.bool)
    part = PenaliseOverlongSoftly(512, max_length=4096)
    expected = [1.0, 1.0, 0.5, -0.5, -2.0]
    assert part(reward_B, lengths_B, scored_B).tolist() == expected
    # an eighth of the limit is the default
    found = PenaliseOverlongSoftly()(reward_B, lengths_B, scored_B, torch.tensor(4096))
    assert found.tolist() == expected
    half = PenaliseOverlongSoftly(factor=0.5)
    halved = half(reward_B, lengths_B, scored_B, torch.tensor(4096))
    assert halved.tolist() == [1.0, 1.0, 0.75, 0.0, -1.0]


def test_matches_slow_loop():
    batch = ragged_batch(1, lengths=(1, 9))
    found = run(PenaliseOverlongSoftly(buffer=14, factor=2.0), batch).value
    limit = int(batch["max_length"])
    for i in range(batch.size("B")):
        excess = int(batch["length_B"][i]) - (limit - 14)
        expected = float(batch["reward_B"][i]) + min(-excess / 14 * 2.0, 0.0)
        assert float(found[i]) == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert (found < batch["reward_B"]).any()
    assert (found == batch["reward_B"]).any()


def test_edges():
    batch = flat_batch((4, 1, 3), reward_B=[1.0, NAN, 1.0])
    # limit 4: an eighth is less than one token, so the buffer is one token
    found = run(PenaliseOverlongSoftly(), batch).value
    assert found.tolist() == pytest.approx([0.0, NAN, 1.0], nan_ok=True)
    unscored = batch.set(reward_B=torch.zeros(3), scored_B=torch.tensor([False, True, True]))
    assert run(PenaliseOverlongSoftly(), unscored).value.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(UserError, match="buffer of 5 tokens is longer than the limit of 4"):
        run(PenaliseOverlongSoftly(buffer=5), batch)
    run(PenaliseOverlongSoftly(buffer=4), batch)
    with pytest.raises(UserError, match="max_length"):
        PenaliseOverlongSoftly()(batch["reward_B"], batch["length_B"], batch["scored_B"])
    for field in ("buffer", "factor", "max_length"):
        with pytest.raises(UserError, match=field):
            PenaliseOverlongSoftly(**{field: -1})
