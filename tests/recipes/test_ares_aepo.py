import json
import math

import pytest
import torch
from builders import (
    NAN,
    assert_equal_pushes,
    assert_same_push,
    clipped,
    learning,
    pushed,
    ragged_batch,
    stages,
)

from strop.method.check import check
from strop.parts.control.hold_kl_by_difficulty import HoldKlByDifficulty
from strop.parts.reward.mark_open_windows import MarkOpenWindows
from strop.recipes.ares_aepo import ares_aepo
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


def with_difficulty(batch):
    rng = torch.Generator().manual_seed(5)
    weight_T = torch.rand(batch.size("T"), generator=rng, dtype=torch.float64)
    return batch.set(
        difficulty_B=batch["index_B"] % 3, kl_weight_T=torch.where(batch["mask_T"], weight_T, NAN)
    )


def test_gradient_is_that_of_the_published_loss():
    betas = {"easy": 0.5, "medium": 1.5, "hard": 3.0}
    knobs = {f"terms.kl.objective.beta_{name}": beta for name, beta in betas.items()}
    algorithm = ares_aepo(beta=0.2).with_knobs(knobs)
    batch = with_difficulty(stages(algorithm, ragged_batch(1)))
    rows = learning(batch)
    count = sum(len(tokens) for _, tokens in rows)
    of = list(betas.values())

    def loss_of(logp_T):
        total = 0.0
        for i, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            policy = clipped(ratio, batch["advantage_B"][i], 0.2, 0.3)
            d = batch["logp_ref_T"][tokens] - logp_T[tokens]
            k3 = (d.exp() - d - 1) * batch["kl_weight_T"][tokens]
            total = total + (policy + 0.2 * of[i % 3] * k3).sum() / count
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_is_its_parent_where_nothing_is_weighed_by_difficulty():
    batch = with_difficulty(stages(grpo(), ragged_batch(1)))
    even = batch.set(kl_weight_T=torch.ones(batch.size("T")).double())
    parent = grpo(beta=0.02, clip_high=0.3, aggregation="token-mean")
    assert_equal_pushes(ares_aepo(beta=0.02), parent, even)
    metrics = pushed(ares_aepo(beta=0.02), even)[2]
    shares = [metrics[f"ares/tokens_{name}"] for name in ("easy", "medium", "hard")]
    assert sum(shares) == pytest.approx(1.0)
    sums = [metrics[f"ares/kl_{name}"] for name in ("easy", "medium", "hard")]
    assert sum(sums) == pytest.approx(metrics["kl"])


def told(easy, hard):
    return {
        "ares/kl_easy": easy * 0.5, "ares/tokens_easy": 0.5,
        "ares/kl_medium": 0.0, "ares/tokens_medium": 0.0,
        "ares/kl_hard": hard * 0.5, "ares/tokens_hard": 0.5,
    }  # fmt: skip


def test_weights_are_moved_towards_the_target():
    part = HoldKlByDifficulty(every=2)
    knobs = dict.fromkeys(part.moves, 1.0)
    result = part(metrics=told(0.011, 0.03), state=part.init(), knobs=knobs)
    assert result.value == knobs
    state = json.loads(json.dumps(result.state))
    result = part(metrics=told(0.001, 0.03), state=state, knobs=knobs)
    easy = (0.97 * 0.011 + 0.03 * 0.001) / 0.01 - 1
    assert result.value["terms.kl.objective.beta_easy"] == pytest.approx(math.exp(0.05 * easy))
    assert result.value["terms.kl.objective.beta_medium"] == 1.0
    assert result.value["terms.kl.objective.beta_hard"] == pytest.approx(math.exp(0.05 * 0.2))
    assert result.metrics["ares/beta_hard"] == result.value["terms.kl.objective.beta_hard"]
    near = {"steps": 1, "mean": (0.0101, -1.0, 0.0001)}
    knobs[part.moves[2]] = 1e-4
    held = part(metrics={}, state=near, knobs=knobs)  # within 2%, and at the smallest weight
    assert list(held.value.values()) == pytest.approx([1.0, 1.0, 1e-4])


def test_a_kl_that_is_rounded_below_0_was_seen():
    part = HoldKlByDifficulty(every=1)
    knobs = dict.fromkeys(part.moves, 1.0)
    result = part(metrics=told(-1e-9, 0.01), state=part.init(), knobs=knobs)
    assert result.state["mean"][0] == 0.0
    assert result.value[part.moves[0]] == pytest.approx(math.exp(-0.05 * 0.2))


def test_composes_and_refuses():
    algorithm = ares_aepo(variant="code", w=2, alpha=0.3, words="wait so", num_top=5)
    check(algorithm)
    mark, part = (use.part for use in algorithm.reward[-2:])
    assert (mark.width, mark.words, mark.num_top) == (2, "wait so", 5)
    assert (part.variant, part.weight) == ("code", 0.3)
    with pytest.raises(UserError, match=r"variant='paper'\): num_top=3 would have no effect"):
        ares_aepo(num_top=3)
    assert ares_aepo(w=3).reward[-2].part == MarkOpenWindows(width=3)
    assert ares_aepo(kl_every=0).control == ares_aepo(beta=0.0).control == ()
