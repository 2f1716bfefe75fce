"""Hierarchical credit on a tree: unbiased, and less noisy than flat credit (arXiv 2602.16165)."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from strop.auditing.estimate import Audit, audit
from strop.auditing.tree import random_policy, random_tree
from strop.method.algorithm import Algorithm
from strop.method.part import Result, Use
from strop.parts.probe.mark_spans import ACTION, SUBGOAL
from strop.recipes.hiper_hae import hiper_hae

# The subject of the paper's theorem: the advantages, not shaping, normalising or the reference.
PLAIN = {"normalize": False, "c_keep": 0.0, "c_inv": 0.0, "c_cons": 0.0, "beta": 0.0,
         "num_rollouts": 1}  # fmt: skip


@dataclass(frozen=True)
class EveryFewTurns:
    """A segment lasts `every` turns (0: the episode); its first turn is the subgoal, where it has
    one of its own, the others act.
    """

    kind = "probe"
    writes: ClassVar[tuple[str, ...]] = ("span_T", "switch_K", "subgoal_K")
    every: int = 0
    subgoals: bool = True

    def __call__(self, index_K: Tensor, turn_T: Tensor) -> Result:
        begins_K = index_K % self.every == 0 if self.every else torch.zeros_like(index_K).bool()
        aims_K = begins_K if self.subgoals else torch.zeros_like(begins_K)
        span_K = torch.where(aims_K, SUBGOAL, ACTION)
        return Result((span_K[turn_T], begins_K, torch.zeros_like(index_K)))


def method(every: int, subgoals: bool = True, **options: object) -> Algorithm:
    """hiper_hae whose blocks are told by the turn's place, as the tree has no texts."""
    whole = hiper_hae(**{**PLAIN, **options})
    reads = whole.probes[1:]  # after mark_spans
    return dataclasses.replace(whole, probes=(Use(EveryFewTurns(every, subgoals)), *reads))


@functools.cache
def audited(every: int, subgoals: bool = True, seed: int = 1, **options: object) -> Audit:
    tree = random_tree(4, 2, share=0.4, seed=seed)
    theta = random_policy(tree, 0.4, seed)
    return audit(method(every, subgoals, **options), tree, theta, group_size=1)


@pytest.mark.parametrize(
    ("every", "lam_seg", "seed"), [(2, 0.0, 1), (2, 1.0, 2), (3, 0.95, 3), (3, 0.0, 1)]
)
def test_hierarchical_credit_is_unbiased_with_less_noise_than_flat(
    every: int, lam_seg: float, seed: int
) -> None:
    """Flat: the same estimator on episodes that never switch, which is GAE over turns, lam = 1."""
    flat, apart = audited(0, seed=seed), audited(every, seed=seed, lam_seg=lam_seg)
    for found in (flat, apart):
        assert found.exact
        assert found.scale.value == pytest.approx(1 / 4, abs=1e-6)  # the average over four tokens
        assert found.bias.value == pytest.approx(0, abs=1e-5)
    assert apart.noise.value < 0.97 * flat.noise.value


def test_what_is_left_of_the_noise_falls_with_the_horizon_of_credit() -> None:
    """Within segments and over them: every shortening takes noise away, none brings bias."""
    by_segment = [audited(2, lam_seg=lam).noise.value for lam in (1.0, 0.95, 0.5, 0.0)]
    assert by_segment == sorted(by_segment, reverse=True)
    assert len(set(by_segment)) == 4


def test_at_equal_decay_segments_have_less_noise_than_turns() -> None:
    """Flat credit at lam 0.95 decays a turn at a time and goes on to the end; that of actions ends
    with their segment, at the true value of what follows.
    """
    flat, apart = audited(0, lam=0.95), audited(2, lam=0.95, lam_seg=0.95)
    assert apart.noise.value < flat.noise.value
    assert (flat.bias.value, apart.bias.value) == pytest.approx((0, 0), abs=1e-5)


def test_a_segment_a_turn_is_one_step_ahead() -> None:
    """All turns act, and each is a segment: the surprise of one step, as with lam = 0 in one."""
    apart, ahead = audited(1, subgoals=False), audited(0, lam=0.0)
    for name in ("scale", "noise", "entropy_change"):
        one, other = getattr(apart, name).value, getattr(ahead, name).value
        assert one == pytest.approx(other, rel=1e-6)
