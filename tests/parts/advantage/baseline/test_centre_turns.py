import pytest
import torch
from builders import flat_batch, run
from ragged import ragged_batch

from strop.parts.advantage.baseline.centre_turns import KEYS, CentreTurns

KEY_OF = {
    "index": lambda b, k: (int(b["group_K"][k]), int(b["index_K"][k])),
    "state": lambda b, k: (int(b["group_K"][k]), int(b["state_K"][k])),
    "group": lambda b, k: int(b["group_K"][k]),
    "last": lambda b, k: (
        int(b["group_K"][k]),
        k + 1 == b.size("K") or int(b["rollout_K"][k + 1] != b["rollout_K"][k]),
    ),
    "role": lambda b, k: int(b["role_K"][k]),
    "player": lambda b, k: int(b["player_B"][b["rollout_K"][k]]),
    "batch": lambda b, k: 0,
}


def with_returns(seed):
    batch = ragged_batch(seed)
    rng = torch.Generator().manual_seed(seed)
    return_K = torch.randn(batch.size("K"), generator=rng, dtype=torch.float64)
    return batch.set(return_K=return_K)


def slow(part, batch):
    scored = [bool(batch["scored_B"][int(i)]) for i in batch["rollout_K"]]
    keys = [KEY_OF[part.key](batch, k) for k in range(batch.size("K"))]
    values = batch["return_K"].tolist()
    found = []
    for k in range(len(keys)):
        peers = [values[j] for j in range(len(keys)) if keys[j] == keys[k] and scored[j]]
        if not scored[k]:
            found.append(0.0)
            continue
        if len(peers) == 1:
            z, std = (values[k] if part.singleton == "raw" else 0.0), 1.0
        else:
            mean = sum(peers) / len(peers)
            z = values[k] - mean
            z = z * len(peers) / (len(peers) - 1) if part.leave_one_out else z
            ddof = 1 if part.scale == "unbiased" else 0
            std = (sum((p - mean) ** 2 for p in peers) / (len(peers) - ddof)) ** 0.5
        found.append(z if part.scale == "none" else z / (std + part.eps))
    return found


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scale", ["none", "biased", "unbiased"])
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_matches_slow_loop(key, scale, leave_one_out):
    for seed, singleton in ((0, "raw"), (1, "zero")):
        part = CentreTurns(key, leave_one_out, scale, singleton=singleton)
        batch = with_returns(seed)
        assert run(part, batch).value.tolist() == pytest.approx(slow(part, batch), abs=1e-9)


def test_equal_returns_give_exactly_0():
    batch = with_returns(3)
    batch = batch.set(return_K=torch.full((batch.size("K"),), 0.1))
    assert not run(CentreTurns("group", scale="unbiased"), batch).value.any()


def test_how_many_peers_turns_have_is_logged_by_what_makes_them_alike():
    # rollouts of 2, 1 and 1 turns; the last one is alone in its group, and one is not scored
    batch = flat_batch(
        (2, 1, 1, 1), (0, 0, 1, 1), turn_T=torch.arange(5),
        rollout_K=torch.tensor([0, 0, 1, 2, 3]), index_K=[0, 1, 0, 0, 0], return_K=[1.0] * 5,
        scored_B=[True, True, True, False],
    )  # fmt: skip
    told = run(CentreTurns("index"), batch).metrics
    assert told == {"turns/peers_index": 0.5, "turns/frac_alone_index": 0.5}
    told = run(CentreTurns("group"), batch).metrics  # three of one group
    assert told == {"turns/peers_group": 1.5, "turns/frac_alone_group": 0.25}
