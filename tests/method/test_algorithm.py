"""Composition: order of reads and writes, contradictions, paths and knobs."""

import dataclasses
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import Tensor

from strop.batch.columns import Column
from strop.catalogue.seams import STAGES
from strop.method import notation, reading
from strop.method.algorithm import Algorithm
from strop.method.check import check
from strop.method.part import Term, Use
from strop.method.schedule import Linear
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.plan.update_critic_first import UpdateCriticFirst
from strop.parts.reward.rescale_reward import RescaleReward
from strop.parts.sampling.track_success import TrackSuccess
from strop.recipes.cory import cory
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@dataclass(frozen=True)
class NeedsTurns:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, reward_K: Tensor, advantage_B: Tensor) -> Tensor:
        return advantage_B


@dataclass(frozen=True)
class NeedsOwn:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, surprise_B: Tensor) -> Tensor:
        return surprise_B


@dataclass(frozen=True)
class WritesOwn:
    kind: ClassVar[str] = "advantage/baseline"
    writes: ClassVar[tuple[str, ...]] = ("surprise_B",)
    declares: ClassVar[tuple[Column, ...]] = (Column("surprise_B", "float", "its reward"),)
    facts: ClassVar[frozenset[str]] = frozenset({"removes_uniform_groups"})

    def __call__(self, reward_B: Tensor) -> Tensor:
        return reward_B


@dataclass(frozen=True)
class LivesOnUniformGroups:
    kind: ClassVar[str] = "advantage/baseline"
    facts: ClassVar[frozenset[str]] = frozenset({"learns_from_uniform_groups"})

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B


def with_advantage(*chain) -> Algorithm:
    return dataclasses.replace(grpo(), advantage=tuple(Use(part) for part in chain))


def test_uses_come_in_the_order_of_a_step():
    stages = [path.split(".")[0] for path, _ in grpo(beta=0.1).uses()]
    assert [STAGES.index(stage) for stage in stages] == sorted(map(STAGES.index, stages))
    slots = [path for path, _ in grpo().uses() if path.startswith("terms")]
    assert slots == ["terms.policy.ratio", "terms.policy.objective", "terms.policy.average"]


def test_reads_by_stage():
    algorithm = grpo(beta=0.1)
    assert {"logp_old_T", "logp_ref_T", "advantage_T"} <= algorithm.reads(("terms",))
    assert "logp_ref_T" not in grpo().reads()
    assert algorithm.reads(("advantage",)) >= {"group_B", "scored_B"}


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (with_advantage(NeedsTurns()), r"advantage: needs_turns reads reward_K \(reward of a "
         r"turn\), which nothing before it writes; play_turns or branch_after_turns or "),
        (with_advantage(NeedsOwn()), "advantage: needs_own reads surprise_B, which no part before"),
        (dataclasses.replace(grpo(), sampling=(Use(TrackSuccess()),)),
         "track_success reads draws, and no part before it draws: begin with draw_in_shuffled_ord"),
        (dataclasses.replace(grpo(), reward=(*grpo().reward, Use(SubtractGroupMean()))),
         "which the stage advantage computes after curation: connect .advantage_B: made_advantage"),
        (dataclasses.replace(grpo(), reward=(Use(RescaleReward()),)),
         r"reads reward_B \(outcome after shaping\), which .*; score_with_verifiers or .* would"),
        (dataclasses.replace(grpo(), plan=Use(UpdateCriticFirst())),
         "update_critic_first has updates of the critic alone, and no term trains one: take split"),
        (with_advantage(SubtractGroupMean()), "terms: clip_both_sides reads advantage_T, which the "
         "advantage chain does not write: end the chain with a credit part such as spread_evenly"),
    ],
)  # fmt: skip
def test_check_names_part_column_and_remedy(algorithm, message):
    with pytest.raises(UserError, match=message):
        check(algorithm)


def test_an_earlier_part_or_the_caller_provides():
    own = with_advantage(WritesOwn(), NeedsOwn())
    own = dataclasses.replace(own, advantage=(*own.advantage, *grpo().advantage))
    check(own)
    turned = with_advantage(NeedsTurns())
    turned = dataclasses.replace(turned, advantage=(*turned.advantage, *grpo().advantage))
    check(turned, given=frozenset({"reward_K"}))
    wrong_order = dataclasses.replace(own, advantage=own.advantage[1:] + own.advantage[:1])
    with pytest.raises(UserError, match="needs_own reads surprise_B"):
        check(wrong_order)


def test_contradicting_facts_are_refused_with_both_names():
    chain = (Use(WritesOwn()), Use(LivesOnUniformGroups()), *grpo().advantage)
    with pytest.raises(UserError, match="writes_own and lives_on_uniform_groups do not go toget"):
        check(dataclasses.replace(grpo(), advantage=chain))
    assert dataclasses.replace(grpo(), advantage=chain).facts() >= {
        "removes_uniform_groups", "learns_from_uniform_groups"
    }  # fmt: skip


def test_ratio_and_objective_must_fit():
    (term,) = grpo().terms
    with pytest.raises(UserError, match="reads log_ratio_T; give the term a ratio such as"):
        check(
            dataclasses.replace(grpo(), terms=(dataclasses.replace(term, ratio=None),)),
            frozenset({"log_ratio_T"}),
        )
    (kl,) = grpo(beta=0.1).terms[1:]
    with pytest.raises(UserError, match="term kl has the ratio ratio_per_token, but penalise"):
        check(dataclasses.replace(grpo(), terms=(dataclasses.replace(kl, ratio=term.ratio),)))


def test_terms_have_distinct_names():
    (term,) = grpo().terms
    for name in ("kl-ref", "lambda", "a.b"):
        with pytest.raises(UserError, match=f"a loss term is called '{re.escape(name)}'"):
            dataclasses.replace(grpo(), terms=(dataclasses.replace(term, name=name),))
    with pytest.raises(UserError, match="two loss terms share a name: policy, policy"):
        dataclasses.replace(grpo(), terms=(term, term))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantage": (SubtractGroupMean(),)}, "advantage of the method has SubtractGroupMean("),
        ({"plan": UpdateCriticFirst()}, "plan of the method has UpdateCriticFirst("),
        ({"terms": grpo().advantage}, "write Term(name, Use(part), Use(part))"),
        (
            {"terms": (Term("policy", SubtractGroupMean(), grpo().terms[0].average),)},
            "terms.policy of the method has SubtractGroupMean(",
        ),
    ],
)
def test_a_part_without_a_use_is_named(changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        dataclasses.replace(grpo(), **changes)
    lone = dataclasses.replace(grpo(), advantage=Use(SubtractGroupMean()))  # one needs no tuple
    assert [use.part for use in lone.advantage] == [SubtractGroupMean()]


def test_labels_become_distinct_and_stay():
    chain = (Use(DivideByGroupStd()), Use(DivideByGroupStd(1.0)), Use(DivideByGroupStd(2.0)))
    algorithm = dataclasses.replace(grpo(), advantage=chain)
    labels = [use.label for use in algorithm.advantage]
    name = "divide_by_group_std"
    assert labels == [name, f"{name}_2", f"{name}_3"]
    again = dataclasses.replace(
        algorithm, advantage=(*algorithm.advantage, Use(DivideByGroupStd()))
    )
    assert [use.label for use in again.advantage] == [*labels, f"{name}_4"]
    taken = (Use(DivideByGroupStd()), Use(DivideByGroupStd(), label=f"{name}_2"), chain[1])
    labels = [use.label for use in dataclasses.replace(algorithm, advantage=taken).advantage]
    assert len(set(labels)) == 3
    changed = algorithm.with_knobs({f"advantage.{name}_2.eps": 0.5})
    assert [use.part.eps for use in changed.advantage] == [1e-6, 0.5, 2.0]


def test_every_path_can_be_set_and_only_that_changes():
    algorithm = notation.recipe("entrocraft")
    before = algorithm.paths()
    for path, value in before.items():
        if isinstance(value, bool | str | tuple):
            continue
        new = 0.5 if isinstance(value, float | Linear) else value + 1
        after = algorithm.with_knobs({path: new}).paths()
        assert after.pop(path) == new
        assert after == {k: v for k, v in before.items() if k != path}
    with pytest.raises(UserError, match=r"no option advantage\.nothing\.eps"):
        algorithm.with_knobs({"advantage.nothing.eps": 1.0})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("advantage.charge_kl_to_reference.coef", Linear(0.2, 0.0), "so a schedule there would co"),
        ("control.hold_kl_with_coefficient.path", "plan.split_into_minibatches.replayed_last",
         "which is no number but False"),
        ("control.hold_kl_with_coefficient.path", "training.rl", "which is no option of this meth"),
    ],
)  # fmt: skip
def test_a_control_moves_numbers_alone(path, value, message):
    algorithm = cory().with_knobs({path: value})
    with pytest.raises(UserError, match=f"control: hold_kl_with_coefficient moves .*{message}"):
        check(algorithm)


def test_at_step_leaves_no_schedule():
    algorithm = notation.recipe("entrocraft(beta=linear(0.1, 0.3))").at_step(5, 10)
    paths = algorithm.paths()
    assert paths["terms.kl.coef"] == pytest.approx(0.2)
    assert paths["selection.keep_inside_entropy_band.h_low"] == pytest.approx(0.5)
    assert algorithm.at_step(9, 10) == algorithm


def test_algorithms_are_values():
    assert grpo() == grpo()
    assert hash(grpo()) == hash(grpo())
    assert grpo() != grpo(eps=1e-4)
    assert isinstance(grpo().terms[0], Term)


@pytest.mark.parametrize(
    ("part", "column"),
    [
        ("centre_tokens_by_position", "reward_K or reward_T"),
        ("discount_turn_rewards(stop='after')[values_K: one_K] | spread_evenly", "match_K"),
    ],
)
def test_of_optional_columns_one_must_be_there(part, column):
    algorithm = notation.recipe("grpo")
    one = Use(OneATurn())
    chain = (one, *reading.content("advantage", part))
    with pytest.raises(UserError, match=f"advantage: .* reads {column} "):
        check(dataclasses.replace(algorithm, advantage=chain))


@dataclass(frozen=True)
class OneATurn:
    kind: ClassVar[str] = "probe"
    writes: ClassVar[tuple[str, ...]] = ("one_K",)

    def __call__(self, rollout_K: Tensor) -> Tensor:
        return rollout_K.double()


@dataclass(frozen=True)
class AsksFor:
    """A part of any kind that asks for one column."""

    kind: str = "probe"


ASKS = [
    ("reward", "logp_old_T", "reward: .* reads logp_old_T, which is computed after curation"),
    ("advantage", "logp_T", "reads logp_T, which is the current policy's: only ratios and obj"),
    ("advantage", "logq_TV", "reads logq_TV, which is the current policy's: only objectives of"),
    ("advantage", "share_T", r"reads share_T \(.*\), which is made inside a loss term"),
    ("advantage", "value_T", "reads value_T, for which there is no critic: add a term with"),
]


@pytest.mark.parametrize(("stage", "column", "message"), ASKS)
def test_a_column_is_refused_before_it_is_there(stage, column, message):
    space: dict = {}
    exec(f"def call(self, {column}): return {column}", space)
    kind = type("Asks", (AsksFor,), {"__call__": space["call"], "writes": ("outcome_B",)})
    algorithm = notation.recipe("grpo")
    chain = (*getattr(algorithm, stage), Use(kind()))
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(algorithm, **{stage: chain}))
