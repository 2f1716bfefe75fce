"""The records of columns: one a name, complete, and read by everything that lists columns."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from ragged import made, ragged_batch

from strop import catalogue, columns
from strop.batch import DERIVED, level_of
from strop.columns import Column
from strop.errors import UserError
from strop.part import Use

EVERY = catalogue.columns()


def test_the_standard_columns_are_one_record_a_name():
    assert len(columns.KNOWN) == len(columns.STANDARD)
    assert all(c.writer and c.meaning for c in columns.STANDARD)
    assert {c.name for c in columns.STANDARD if c.writer == "batch"} == set(DERIVED)


@pytest.mark.parametrize("entry", [e for e in catalogue.parts() if hasattr(e.load(), "declares")])
def test_a_part_declares_what_its_source_says_and_only_columns_of_its_own(entry):
    own = [column.name for column in entry.load().declares]
    assert tuple(own) == entry.declares
    assert all(catalogue.declarer(name) is entry for name in own), "two parts declare it"
    assert not set(own) & columns.KNOWN.keys()


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_column_is_made_as_its_record_says(name):
    column, rng = EVERY[name], torch.Generator().manual_seed(0)
    values = made(column, (400,), rng)
    kinds = {"float": torch.float64, "int": torch.int64, "bool": torch.bool}
    assert values.dtype == kinds[column.dtype]
    kind, *numbers = column.random.split(":")
    if kind == "flag":
        assert values.double().mean().item() == pytest.approx(float(numbers[0]), abs=0.1)
    if kind == "logp":
        assert values.max() <= -0.1


def test_a_ragged_batch_has_every_column_of_a_table():
    batch = ragged_batch(0)
    wanted = {n for n, c in EVERY.items() if level_of(n) and not (c.numbered or n.endswith("_TV"))}
    assert wanted <= {*batch.columns, *DERIVED}


@dataclass(frozen=True)
class Heat:
    kind: ClassVar[str] = "advantage/scale"
    declares: ClassVar[tuple[Column, ...]] = (
        Column("heat_B", "float", "how warm it is", "K", door=("heats",)),
    )

    def __call__(self, advantage_B, heat_B):
        return advantage_B / heat_B


@dataclass(frozen=True)
class OtherHeat(Heat):
    declares: ClassVar[tuple[Column, ...]] = (Column("heat_B", "int", "how warm it is", "K"),)


@dataclass(frozen=True)
class OtherReward(Heat):
    declares: ClassVar[tuple[Column, ...]] = (Column("reward_B", "float", "mine"),)


def test_two_declarations_of_a_name_must_agree():
    assert columns.together([Heat, Heat])["heat_B"].unit == "K"
    with pytest.raises(UserError, match="OtherHeat declares the column heat_B otherwise than Heat"):
        columns.together([Heat, OtherHeat])
    with pytest.raises(UserError, match="reward_B otherwise than the standard columns"):
        columns.together([OtherReward])


def test_a_renamed_column_is_what_the_parts_own_would_be():
    known = columns.of([("advantage.heat", Use(Heat(), (("heat_B", "warmth_B"),)))])
    assert known["warmth_B"].unit == "K"
    assert known["warmth_B"].names == ("warmth",)
    assert known["heat_B"].names == ("heats",)


def test_a_dtype_that_there_is_not():
    with pytest.raises(UserError, match="column heat_B: dtype 'double' is none of"):
        Column("heat_B", "double", "how warm it is")


def test_current_refreshed_and_value_columns():
    assert columns.CURRENT == ("logp_T", "entropy_T", "mean_logp_T")
    assert columns.is_current("nucleus_entropy_0.8_T")
    assert columns.is_current("min_p_kl_1e-05_T")
    assert not columns.is_current("nucleus_entropy_T")
    assert not columns.is_current("logp_old_T")
    assert {"logp_ref_T", *columns.OF_POLICY} == columns.REFRESHED
    assert columns.OF_POLICY["sum_pi_squared_old_T"] == "sum_pi_squared_T"
    names = ("value_T", "value_low_T", "value_low_old_T", "value_slow_T", "value_K")
    assert [columns.is_head(name) for name in names] == [True, True, False, False, False]
