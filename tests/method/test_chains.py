"""How a chain of parts runs: state by path, draws by label, narrowed masks, metrics."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from builders import flat_batch
from torch import Tensor

from strop.method.chains import Chains, generators, learnable
from strop.method.part import Result, Selected, Use
from strop.recipes.cory import cory
from strop.support.errors import UserError


@dataclass(frozen=True)
class CountCalls:
    """Adds how often it was called before, and a draw."""

    kind: ClassVar[str] = "advantage/baseline"
    noise: float = 0.0

    def init(self) -> int:
        return 0

    def __call__(self, advantage_B: Tensor, state: int, rng: torch.Generator) -> Result:
        drawn_B = torch.rand(advantage_B.shape, generator=rng, dtype=advantage_B.dtype)
        return Result(advantage_B + state + self.noise * drawn_B, state + 1, {"calls": state + 1.0})


@dataclass(frozen=True)
class KeepFrom:
    kind: ClassVar[str] = "selection"
    first: int = 0
    reason: str = ""

    def __call__(self, gradient_T: Tensor) -> Selected:
        kept_T = torch.arange(gradient_T.shape[0]) >= self.first
        reason = self.reason or f"before_{self.first}"
        return Selected(kept_T, torch.ones_like(kept_T), reason)


def chains(seed: int = 0, state: Any = None) -> Chains:
    return Chains(generators(seed, 1), state={} if state is None else state)


def test_state_goes_by_path_from_its_first_value():
    batch = flat_batch((1, 1), reward_B=[1.0, 2.0])
    uses = (Use(CountCalls(), label="one"), Use(CountCalls(), label="two"))
    state = {"advantage.two": 5}
    run = chains(state=state)
    assert run.credit(uses, batch)["advantage_B"].tolist() == [6.0, 7.0]  # + 0, then + 5
    assert run.state == {"advantage.one": 1, "advantage.two": 6}
    assert run.metrics == {"calls": 6.0}
    assert run.credit(uses, batch)["advantage_B"].tolist() == [8.0, 9.0]  # + 1, then + 6


def test_draws_go_by_seed_label_and_number():
    batch = flat_batch((1, 1), reward_B=[0.0, 0.0], advantage_B=[0.0, 0.0])

    def drawn(seed: int, label: str, number: int) -> list[float]:
        use = Use(CountCalls(noise=1.0), label=label)
        return chains(seed).write("advantage", [use], batch, number)["advantage_B"].tolist()

    assert drawn(0, "one", 0) == drawn(0, "one", 0)
    others = [drawn(0, "one", 0), drawn(1, "one", 0), drawn(0, "two", 0), drawn(0, "one", 1)]
    assert len({tuple(each) for each in others}) == 4


def test_selections_narrow_the_masks_in_turn_and_tell_their_share():
    batch = flat_batch((5,), scored_B=[True])
    uses = (Use(KeepFrom(2)), Use(KeepFrom(1)), Use(KeepFrom(4)))
    run = chains()
    chosen = run.select(uses, learnable(batch))
    assert chosen["gradient_T"].tolist() == [False] * 4 + [True]
    assert chosen["denominator_T"].all()
    dropped = {name.rpartition("/")[2]: value for name, value in run.metrics.items()}
    assert {name: round(5 * value) for name, value in dropped.items()} == {
        "before_2": 2, "before_1": 0, "before_4": 2,
    }  # fmt: skip


def test_what_two_selections_drop_for_one_reason_adds_up():
    uses = (Use(KeepFrom(2, "early")), Use(KeepFrom(4, "early")))
    run = chains()
    run.select(uses, learnable(flat_batch((5,), scored_B=[True])))
    assert run.metrics["selection/dropped/early"] == pytest.approx(0.8)


@dataclass(frozen=True)
class CountFrom:
    kind: ClassVar[str] = "selection"
    first: int = 0

    def __call__(self, gradient_T: Tensor) -> Selected:
        kept_T = torch.arange(gradient_T.shape[0]) >= self.first
        return Selected(torch.ones_like(kept_T), kept_T, "none")


def test_what_one_selection_leaves_out_of_the_average_no_other_brings_back():
    uses = (Use(CountFrom(2)), Use(CountFrom(1)), Use(KeepFrom(4)))
    chosen = chains().select(uses, learnable(flat_batch((5,), scored_B=[True])))
    assert chosen["denominator_T"].tolist() == [False, False, True, True, True]
    assert chosen["gradient_T"].tolist() == [False] * 4 + [True]


def test_unscored_rollouts_have_nothing_to_select_from():
    batch = learnable(flat_batch((2, 1), scored_B=[False, True]))
    assert batch["gradient_T"].tolist() == batch["denominator_T"].tolist() == [False, False, True]


def test_telling_keeps_the_state_and_parts_the_metrics():
    run, told = chains(), dict[str, float]()
    use = Use(CountCalls(), label="one")
    run.with_metrics(told).credit([use], flat_batch((1,), reward_B=[0.0]))
    assert told == {"calls": 1.0}
    assert run.metrics == {}
    assert run.state == {"advantage.one": 1}


@dataclass(frozen=True)
class Sloppy:
    """A user's part with a mistake."""

    kind: ClassVar[str] = "advantage/scale"
    mistake: str = ""

    def __call__(self, advantage_B: Tensor) -> Result:
        if self.mistake == "in place":
            advantage_B += 1.0
        measured: Any = advantage_B.mean() if self.mistake == "tensor" else np.float32(0.5)
        metrics = {"own/mean": measured, "own/count": np.int64(3)}
        return Result(advantage_B * 2.0, metrics=metrics)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("in place", "part sloppy changed its input advantage_B in place"),
        ("tensor", "part sloppy gives the metric own/mean as Tensor: give a number"),
    ],
)
def test_a_part_that_changes_its_input_or_gives_no_number_is_named(mistake: str, words: str):
    batch = flat_batch((1, 1), advantage_B=[1.0, 2.0])
    run = chains()
    assert run.write("advantage", [Use(Sloppy())], batch)["advantage_B"].tolist() == [2.0, 4.0]
    assert json.dumps(run.metrics) == '{"own/mean": 0.5, "own/count": 3}', "NumPy's are numbers"
    with pytest.raises(UserError, match=words):
        chains().write("advantage", [Use(Sloppy(mistake))], batch)


def test_a_control_of_a_number_outside_the_method_gets_it_from_the_run_or_the_state():
    algorithm = cory().with_knobs({"control.hold_kl_with_coefficient.path": "training.lr"})
    batch, told = flat_batch((1,)), {"price/kl": 12.0}
    rate = 1 + 0.0256 * 0.2
    moved = chains().control(algorithm, batch, told, {"training.lr": 0.5})
    assert moved == {"training.lr": pytest.approx(0.5 * rate)}
    saved = chains(state={"knobs": {"training.lr": 0.25}}).control(algorithm, batch, told)
    assert saved == {"training.lr": pytest.approx(0.25 * rate)}
    with pytest.raises(UserError, match=r"reads training\.lr, which only a run has"):
        chains().control(algorithm, batch, told)
