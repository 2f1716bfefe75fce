"""Properties of a part: names, reads, writes, calls and changed fields."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from ragged import ragged_batch
from torch import Tensor

from strop.method import part as parts
from strop.method.part import Read, Result, Use
from strop.method.schedule import Linear
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.gate_by_sequence_weight import GateBySequenceWeight
from strop.parts.loss.penalty.hold_entropy_between_quantiles import HoldEntropyBetweenQuantiles
from strop.support.errors import UserError


@dataclass(frozen=True)
class ScaleLikeKLTerm:
    """A user's own part."""

    writes: ClassVar[tuple[str, ...]] = ("first_B", "second_B")
    columns: ClassVar[dict[str, str]] = {"value_N": "outcome_B"}
    factor: float = 2.0
    times: int = 1
    mode: str = "plain"
    on: bool = True

    def __post_init__(self) -> None:
        parts.require(self, "factor", low=0.0, high=10.0)
        parts.require_one_of(self, "mode", ("plain", "other"))

    def __call__(
        self, value_N: Tensor, rng: torch.Generator, extra_B: Tensor | None = None
    ) -> Result:
        noise = torch.rand((), generator=rng)
        second = value_N if extra_B is None else extra_B
        return Result((value_N * self.factor, second), metrics={"noise": float(noise)})


def test_names_and_folders():
    assert parts.name_of(DivideByGroupStd()) == "divide_by_group_std"
    assert parts.kind_of(DivideByGroupStd()) == "advantage/scale"
    assert parts.kind_of(ScaleLikeKLTerm()) == ""
    assert Use(DivideByGroupStd()).label == "divide_by_group_std"
    assert Use(DivideByGroupStd(), label="mine").label == "mine"


def test_reads_are_the_parameters_of_the_call():
    use = Use(ScaleLikeKLTerm())
    assert parts.reads(use) == (
        Read("value_N", "outcome_B", True),
        Read("extra_B", "extra_B", False),
    )
    renamed = Use(ScaleLikeKLTerm(), (("value_N", "reward_B"), ("first_B", "third_B")))
    assert parts.reads(renamed)[0] == Read("value_N", "reward_B", True)
    assert parts.writes(renamed) == ("third_B", "second_B")
    assert parts.writes(Use(DivideByGroupStd())) == ("advantage_B",)


def test_call_and_write():
    batch = ragged_batch(0)
    use = Use(ScaleLikeKLTerm(factor=3.0), (("second_B", "copy_B"),))
    result = parts.call(use, batch, rng=torch.Generator().manual_seed(0), services="unused")
    assert 0 <= result.metrics["noise"] < 1
    after = parts.write(batch, use, result)
    assert after["first_B"].equal(3 * batch["outcome_B"])
    assert after["copy_B"].equal(batch["outcome_B"])
    assert "first_B" not in batch
    given = parts.call(use, batch.set(extra_B=batch["reward_B"].new_ones(batch.size("B"))),
                       rng=torch.Generator())  # fmt: skip
    assert given.value[1].eq(1).all()


def test_a_missing_column_is_named():
    columns = {k: v for k, v in ragged_batch(0).columns.items() if k != "scored_B"}
    batch = type(ragged_batch(0))(columns)
    with pytest.raises(UserError, match="divide_by_group_std reads scored_B, which nothing"):
        parts.call(Use(DivideByGroupStd()), batch)


@dataclass(frozen=True)
class ReturnWhatItIsGiven:
    """A user's own part, which returns what `answer` does."""

    kind: ClassVar[str] = "advantage/scale"

    def __call__(self, rng: object) -> object:
        return rng


@dataclass(frozen=True)
class SelectWhatItIsGiven(ReturnWhatItIsGiven):
    """The same of another kind."""

    kind: ClassVar[str] = "selection"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "return_what_it_is_given returned NoneType for advantage_B, not a tensor"),
        ((torch.zeros(3), torch.zeros(3)), "returned 2 values; return one tensor, advantage_B"),
        (
            torch.zeros(1),
            r"it_is_given gives advantage_B as \[1\], it must be the shape \[rollouts=6\]",
        ),
    ],
)
def test_what_a_part_returns_must_fit_its_columns(returned, message):
    use, batch = Use(ReturnWhatItIsGiven()), ragged_batch(1)
    with pytest.raises(UserError, match=message):
        parts.write(batch, use, parts.call(use, batch, rng=returned))


@dataclass(frozen=True)
class DivideByNothing:
    """A user's own part with a mistake in it."""

    kind: ClassVar[str] = "advantage/scale"

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B * (1 / 0)

    def observe(self, advantage_B: Tensor, state: Any) -> Any:
        return self(advantage_B) if state else None


@dataclass(frozen=True)
class WriteTwo(ReturnWhatItIsGiven):
    """A part of two columns."""

    writes: ClassVar[tuple[str, ...]] = ("advantage_B", "luck_B")


def test_a_part_of_two_columns_is_told_their_order():
    message = "returned one dict; return a tuple of 2 tensors in this order: advantage_B, luck_B"
    both = {"advantage_B": torch.zeros(6), "luck_B": torch.zeros(6)}
    with pytest.raises(UserError, match=message):
        parts.call(Use(WriteTwo()), ragged_batch(1), rng=both)


@dataclass(frozen=True)
class WriteNothing(ReturnWhatItIsGiven):
    """A part of no column, which is named once in the message."""

    kind: ClassVar[str] = "probe"


def test_a_part_of_no_column_is_told_to_name_them():
    use, batch = Use(WriteNothing()), ragged_batch(1)
    message = (
        "^part write_nothing returned one Tensor; it writes no column: name columns in `writes`"
    )
    with pytest.raises(UserError, match=message):
        parts.write(batch, use, parts.call(use, batch, rng=torch.zeros(6)))


def test_an_error_inside_a_part_says_which_part_where_and_when():
    batch = ragged_batch(1).set(step=torch.tensor(7))
    with pytest.raises(ZeroDivisionError) as raised:
        parts.call(Use(DivideByNothing(), label="mine"), batch)
    line = DivideByNothing.__call__.__code__.co_firstlineno + 1
    note = f"The part mine raised this: {__file__}:{line}, step 7"
    assert raised.value.__notes__ == [note]


def test_an_error_inside_observe_and_a_state_that_is_not_returned_name_the_part():
    batch, use = ragged_batch(1).set(step=torch.tensor(7)), Use(DivideByNothing(), label="mine")
    with pytest.raises(ZeroDivisionError) as raised:
        parts.update(use, batch, True, "observe")
    assert raised.value.__notes__[0].startswith("The part mine raised this: ")
    with pytest.raises(UserError, match="mine returned None from `observe`: return the new state"):
        parts.update(use, batch, False, "observe")


def test_what_a_part_returns_in_place_of_columns_is_of_its_kind():
    message = "returned Tensor; a part of selection returns a Selected"
    with pytest.raises(UserError, match=message):
        parts.call(Use(SelectWhatItIsGiven()), ragged_batch(1), rng=torch.zeros(3))


def test_replace_fits_values_to_fields():
    assert parts.replace(DivideByGroupStd(), eps=1).eps == 1.0
    assert isinstance(parts.replace(DivideByGroupStd(), eps=1).eps, float)
    assert parts.replace(ScaleLikeKLTerm(), times=3.0).times == 3
    assert isinstance(parts.replace(ScaleLikeKLTerm(), times=3.0).times, int)
    assert parts.replace(ScaleLikeKLTerm(), factor=Linear(1.0, 2.0)).factor == Linear(1.0, 2.0)


def test_a_field_of_two_numbers_takes_a_list_of_two():
    held = parts.replace(HoldEntropyBetweenQuantiles(), levels=[0, 0.5])
    assert held.levels == (0.0, 0.5)
    assert isinstance(held.levels[0], float)
    for levels in ([0.5], [0.1, 0.5, 0.9], [0.1, "much"]):
        with pytest.raises(UserError, match="levels takes a list of 2 numbers, got "):
            parts.replace(held, levels=levels)
    # vespo's gate would weigh every answer 0
    with pytest.raises(UserError, match="good takes numbers, and one is nan"):
        parts.replace(GateBySequenceWeight(), good=[float("nan"), 3.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epz": 1}, "has no field epz; it has factor, times, mode, on"),
        ({"factor": "much"}, "factor takes a number, got 'much'"),
        ({"factor": True}, "factor takes a number, got True"),
        ({"factor": -1}, "factor must be between 0.0 and 10.0, it is -1.0"),
        ({"factor": float("nan")}, "factor must be a number, it is nan"),
        ({"times": 1.5}, "times takes a whole number, got 1.5"),
        ({"times": float("inf")}, "times takes a whole number, got inf"),
        ({"on": 1}, "on takes true or false, got 1"),
        ({"mode": 1}, "mode takes text, got 1"),
        ({"mode": "wild"}, "mode must be one of plain, other: 'wild'"),
    ],
)
def test_replace_refuses_what_does_not_fit(changes, message):
    with pytest.raises(UserError, match=message):
        parts.replace(ScaleLikeKLTerm(), **changes)


def test_bounds_are_said_as_they_are():
    with pytest.raises(UserError, match=r"clip_both_sides.clip_low must be at least 0.0, it is -1"):
        ClipBothSides(clip_low=-1)


def test_schedules_become_numbers_and_are_checked_then():
    part = ClipBothSides(clip_high=Linear(0.2, -0.2))
    assert parts.at_step(part, 1, 4).clip_high == pytest.approx(0.1)
    assert parts.at_step(ClipBothSides(), 1, 4) == ClipBothSides()
    with pytest.raises(UserError, match=r"clip_high must be at least 0\.0"):
        parts.at_step(part, 4, 4)


def test_renamed_columns_reach_the_parts_own_update():
    @dataclass(frozen=True)
    class Counts:
        def init(self):
            return 0.0

        def update(self, reward_B, state):
            return state + float(reward_B.sum())

        def __call__(self, reward_B: Tensor, state: float) -> Result:
            return Result(reward_B)

    use = Use(Counts(), (("reward_B", "outcome_B"),))
    assert parts.update_reads(use) == ("outcome_B",)
    batch = ragged_batch(2)
    assert parts.update(use, batch, 0.0) == pytest.approx(float(batch["outcome_B"].sum()))


def test_an_item_of_a_list_is_a_number_and_no_schedule():
    with pytest.raises(UserError, match="levels takes a list of 2 numbers, got"):
        parts.replace(HoldEntropyBetweenQuantiles(), levels=(Linear(0.1, 0.2), 0.5))


@dataclass(frozen=True)
class Even:
    """A part of somebody who knows nothing of `require`."""

    kind: ClassVar[str] = "advantage/baseline"
    number: int = 2

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("number must be even")


def test_what_the_class_of_a_part_refuses_by_itself_is_a_mistake_of_the_user():
    with pytest.raises(UserError, match=r"^even: number must be even$"):
        parts.replace(Even(), number=3)
