"""Kinds of part and their places: where parts may stand, and what each must read and write."""

import ast
import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import Tensor

from strop.batch.columns import Column
from strop.catalogue import catalogue, seams
from strop.method import part as parts
from strop.method import reading
from strop.method.charts import Curve, LineChart
from strop.method.check import TAKEN, check
from strop.method.part import Result, Use
from strop.method.services import Texts
from strop.parts.control.accumulate_entropy_error import AccumulateEntropyError
from strop.recipes.grpo import grpo
from strop.support.about import SOURCE
from strop.support.errors import UserError


@dataclass(frozen=True)
class OwnEngineRatio:
    kind: ClassVar[str] = "loss/ratio"

    def __call__(self, logp_T: Tensor, logp_behavior_T: Tensor) -> Tensor:
        return logp_T - logp_behavior_T


@dataclass(frozen=True)
class RewardOfItsOwn:
    kind: ClassVar[str] = "advantage/scale"
    declares: ClassVar[tuple[Column, ...]] = (Column("reward_B", "int", "something else"),)

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B


@dataclass(frozen=True)
class OwnWeight:
    kind: ClassVar[str] = "loss/correction"

    def __call__(self, logp_old_T: Tensor, logp_behavior_T: Tensor) -> Tensor:
        return (logp_old_T - logp_behavior_T).exp()


@dataclass(frozen=True)
class Nameless:
    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B


@dataclass(frozen=True)
class Misnamed:
    kind: ClassVar[str] = "baseline"

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B


@dataclass(frozen=True)
class AsksForTexts:
    kind: ClassVar[str] = "probe"

    def __call__(self, advantage_B: Tensor, texts: Texts) -> Tensor:
        return advantage_B


@dataclass(frozen=True)
class MeasuresInSilence:
    kind: ClassVar[str] = "probe"
    writes: ClassVar[tuple[str, ...]] = ("length_share_B",)
    declares: ClassVar[tuple[Column, ...]] = (Column("length_share_B", "float", "its length"),)

    def __call__(self, length_B: Tensor) -> Result:
        return Result(length_B / length_B.max(), metrics={"length_share/mean": 1.0})


@dataclass(frozen=True)
class MeasuresForTheReport(MeasuresInSilence):
    charts: ClassVar[tuple[LineChart, ...]] = (
        LineChart("Length", "Share of the longest.", (Curve("length_share/mean"),)),
    )


@dataclass(frozen=True)
class MeasuresForThePanel(MeasuresInSilence):
    panel: ClassVar[tuple[str, ...]] = ("length_share/mean",)


@dataclass(frozen=True)
class MeasuresNumbersAlone(MeasuresForThePanel):
    writes: ClassVar[tuple[str, ...]] = ()

    def __call__(self, length_B: Tensor) -> Result:
        return Result((), metrics={"length_share/mean": 1.0})


@dataclass(frozen=True)
class ReadsTheShare:
    kind: ClassVar[str] = "advantage/scale"

    def __call__(self, advantage_B: Tensor, length_share_B: Tensor) -> Tensor:
        return advantage_B * length_share_B


@dataclass(frozen=True)
class DeclaresNothing(MeasuresForThePanel):
    declares: ClassVar[tuple[Column, ...]] = ()


@dataclass(frozen=True)
class MisspellsAnOption:
    kind: ClassVar[str] = "advantage/scale"

    def __call__(self, advantage_B: Tensor, lenght_B: Tensor | None = None) -> Tensor:
        return advantage_B


@dataclass(frozen=True)
class ForgetsTheLetter:
    kind: ClassVar[str] = "advantage/scale"
    writes: ClassVar[tuple[str, ...]] = ("advantage",)

    def __call__(self, foo: Tensor) -> Tensor:
        return foo


@dataclass(frozen=True)
class AsksForPool:
    kind: ClassVar[str] = "rate"

    def __call__(self, pool: tuple[int, ...]) -> float:
        return 1.0


@dataclass(frozen=True)
class MovesNothing:
    kind: ClassVar[str] = "control"

    def __call__(self, metrics: dict[str, float]) -> Result:
        return Result({})


def replaced(stage: str, text: str):
    return reading.replace_stage(grpo(), stage, text)


def advantage(*chain):
    return dataclasses.replace(grpo(), advantage=tuple(chain))


REFUSED = [
    (
        replaced("advantage", "subtract_group_mean | split_into_minibatches | spread_evenly"),
        r"advantage: split_into_minibatches is a part of plan, which stands at plan: take it out, "
        r"or put one of .*advantage/baseline.* in its place",
    ),
    (
        replaced("advantage", "spread_evenly | subtract_group_mean"),
        "advantage: subtract_group_mean writes advantage_B, which nothing after it reads: "
        "move it before spread_evenly, or leave it out",
    ),
    (
        advantage(Use(ReadsTheShare()), grpo().advantage[-1]),
        "reads_the_share reads length_share_B, which no part before it writes; "
        f"{__name__}:MeasuresInSilence would$",
    ),
    (
        dataclasses.replace(grpo(), probes=(Use(DeclaresNothing()),)),
        "probes: declares_nothing writes length_share_B, which is no column: declare it, .declares",
    ),
    (
        advantage(Use(MisspellsAnOption()), *grpo().advantage),
        "misspells_an_option reads lenght_B, which is no column, did you mean length_B",
    ),
    (
        advantage(Use(ForgetsTheLetter()), grpo().advantage[-1]),
        r"forgets_the_letter reads foo, which no part before it writes.*, but its name lacks the "
        r"letter of its table: foo_T \(tokens\), foo_K \(turns\), foo_B \(rollouts\) or foo_P",
    ),
    (
        advantage(Use(ForgetsTheLetter(), columns=(("foo", "advantage_B"),)), grpo().advantage[-1]),
        r"writes advantage, which nothing after it reads, but its name lacks .* advantage_T .*: "
        "leave it out",
    ),
    (
        replaced("advantage", "subtract_group_mean | divide_by_group_std"),
        "reads advantage_T, which the advantage chain does not write: end the chain with",
    ),
    (replaced("bound", "average_over_tokens"), r"terms.policy.objective: average_over_tokens is a"),
    (replaced("reward", "penalise_overlong_softly"), r"reward: penalise_overlong_softly reads"),
    (
        dataclasses.replace(grpo(), reward=()),
        "reward: none of its parts gives reward_B, which the next stage needs: begin the",
    ),
    (dataclasses.replace(grpo(), sampling=()), "sampling: none of its parts gives draws"),
    (dataclasses.replace(grpo(), plan=None), "plan: there is none; split_into_minibatches makes"),
    (dataclasses.replace(grpo(), terms=()), "terms: there is no loss term"),
    (
        replaced("sampling", "add_paraphrases | draw_in_shuffled_order"),
        "sampling: add_paraphrases reads draws",
    ),
    (
        replaced("sampling", "draw_in_shuffled_order | draw_in_shuffled_order"),
        "sampling: draw_in_shuffled_order writes draws, which nothing after it reads: leave it out",
    ),
    (
        advantage(Use(Nameless()), *grpo().advantage),
        'advantage: nameless states no kind: give its class `kind: .* = "advantage/baseline"`',
    ),
    (advantage(Use(Misnamed()), *grpo().advantage), "is of the kind 'baseline', which does not e"),
    (
        advantage(Use(RewardOfItsOwn()), *grpo().advantage),
        "RewardOfItsOwn declares the column reward_B otherwise than the standard columns",
    ),
    (
        advantage(Use(AsksForTexts()), *grpo().advantage),
        "advantage: asks_for_texts asks for texts, which no part gets here: let a part of reward "
        "or probes write a column from it, and read that column",
    ),
    (
        dataclasses.replace(grpo(), probes=(Use(MeasuresInSilence()),)),
        "probes: measures_in_silence writes length_share_B, which nothing after it reads: "
        "state its `charts` or `panel`, if it is there for its metrics, or leave it out",
    ),
    (
        dataclasses.replace(grpo(), rates=(Use(AsksForPool()),)),
        "rates: asks_for_pool asks for pool, which no part gets here: a part of sampling gets it",
    ),
    (
        dataclasses.replace(grpo(), control=(Use(MovesNothing()),)),
        "control: moves_nothing does not say what it moves: give its class `moves`",
    ),
    (
        dataclasses.replace(grpo(), control=(Use(AccumulateEntropyError("terms.policy.ceof")),)),
        "control: accumulate_entropy_error moves terms.policy.ceof, which is no option of this "
        r"method, did you mean terms\.policy\.coef",
    ),
    (
        advantage(Use(grpo().advantage[0].part, (("group", "x_B"),)), *grpo().advantage[1:]),
        "advantage: subtract_group_mean renames group, which it neither reads nor",
    ),
]


@pytest.mark.parametrize(("algorithm", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_line(algorithm, message):
    with pytest.raises(UserError, match=message) as raised:
        check(algorithm)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "probe", [MeasuresForTheReport(), MeasuresForThePanel(), MeasuresNumbersAlone()]
)
def test_a_probe_may_be_there_for_the_metrics_that_it_shows(probe):
    check(dataclasses.replace(grpo(), probes=(Use(probe),)))


@pytest.mark.parametrize("ratio", [OwnEngineRatio(), None])
def test_a_behaviour_ratio_is_known_by_what_it_reads(ratio):
    """A user's own, or a built-in one that is wired to the sampling policy."""
    (term,) = grpo().terms
    wired = Use(term.ratio.part, (("logp_old_T", "logp_behavior_T"),))
    use = wired if ratio is None else Use(ratio)
    assert "contains_behavior_ratio" in parts.facts(use)
    term = dataclasses.replace(term, ratio=use, correction=Use(OwnWeight()))
    with pytest.raises(UserError, match="own_weight do not go together: the engine's importance"):
        check(dataclasses.replace(grpo(), terms=(term,)))


def test_an_own_part_writes_what_its_kind_writes():
    assert parts.writes(Use(OwnWeight())) == ("correction_T",)
    (term,) = grpo().terms
    term = dataclasses.replace(term, correction=Use(OwnWeight()))
    check(dataclasses.replace(grpo(), terms=(term,)))


def test_every_kind_is_a_folder_and_every_place_admits_some():
    assert {entry.folder for entry in catalogue.parts()} == set(seams.KINDS)
    for place in seams.PLACES:
        assert seams.kinds_at(place), place.name
    assert {name for seam in seams.SEAMS for name in seam.places} == {
        place.name for place in seams.PLACES
    }


def test_what_the_trainer_takes_is_what_its_files_read():
    """Of the columns that parts put in another's place; the trainer begins advantage_B anew."""
    files = (
        "training/step", "method/chains", "training/learner/kernel", "training/collect/here",
        "training/learner/step_metrics", "training/learner/update",
        "training/learner/reference_prompts",
    )  # fmt: skip
    read = set()
    for name in files:
        for node in ast.walk(ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                read.add(node.slice.value)
    anew = {seam.kind for seam in seams.SEAMS if seam.anew}
    uses = [Use(entry.load()()) for entry in catalogue.parts() if entry.folder in anew]
    replaced = {column for use in uses for column in parts.writes(use)}
    started = {column for place in seams.PLACES for column in place.given}
    assert read & replaced - started == TAKEN & replaced
    assert {"reward_B", "reward_BM", "outcome_B", "scored_B", "advantage_T"} <= TAKEN
