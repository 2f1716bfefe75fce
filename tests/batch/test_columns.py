"""The records of columns: one per name, complete, and read by everything that lists columns."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from every import every
from ragged import ragged_batch
from short_runs import make_lab, run_of, settings_for

from strop import functional
from strop.batch import columns
from strop.batch.batch import DERIVED, level_of
from strop.batch.columns import Column
from strop.catalogue import catalogue
from strop.method.part import Use
from strop.padded.compose import compose
from strop.padded.names import STRUCTURE
from strop.support.errors import UserError

EVERY = catalogue.columns()


def test_the_standard_columns_are_one_record_a_name():
    assert len(columns.KNOWN) == len(columns.STANDARD)
    assert all(c.writer and c.meaning for c in columns.STANDARD)
    assert {c.name for c in columns.STANDARD if c.writer == "batch"} == set(DERIVED)


@every("entry", [e for e in catalogue.parts() if hasattr(e.load(), "declares")])
def test_a_part_declares_what_its_source_says_and_only_columns_of_its_own(entry):
    own = [column.name for column in entry.load().declares]
    assert tuple(own) == entry.declares
    assert all(catalogue.declarer(name) is entry for name in own), "two parts declare it"
    assert not set(own) & columns.KNOWN.keys()


@every("name", sorted(EVERY))
def test_a_column_is_made_as_its_record_says(name):
    column, rng = EVERY[name], torch.Generator().manual_seed(0)
    values = column.drawn((400,), rng)
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


def test_the_page_of_the_batch_shows_every_column_and_who_declares_it():
    page = (Path(__file__).parents[2] / "docs" / "BATCH.md").read_text(encoding="utf-8")
    for name in EVERY:
        shown = name.replace("_T", "_NUMBER_T") if EVERY[name].numbered else name
        line = next(line for line in page.splitlines() if line.startswith(f"| `{shown}` |"))
        entry = catalogue.declarer(name)
        assert entry is None or f"| `{entry.name}` |" in line


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
    assert columns.CURRENT == ("logp_T", "entropy_T", "mean_logp_T", "router_balance_T")
    assert columns.is_current("nucleus_entropy_0.8_T")
    assert columns.is_current("min_p_kl_1e-05_T")
    assert not columns.is_current("nucleus_entropy_T")
    assert not columns.is_current("logp_old_T")
    assert {"logp_ref_T", "kl_ref_old_T", *columns.OF_POLICY} == columns.REFRESHED
    assert columns.OF_POLICY["sum_pi_squared_old_T"] == "sum_pi_squared_T"
    names = ("value_T", "value_low_T", "value_low_old_T", "value_slow_T", "value_K")
    assert [columns.is_head(name) for name in names] == [True, True, False, False, False]


# A user's own file: a part that brings a column, one that reads it, a recipe with words of its own.
WARMTH = """
import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from strop.method.algorithm import Algorithm
from strop.batch.columns import Column
from strop.method.part import Result, Use
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@dataclass(frozen=True)
class Feel:
    kind: ClassVar[str] = "probe"
    writes: ClassVar[tuple[str, ...]] = ("heat_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("heat_B", "float", "how warm the answer is", "K", door=("heats",)),
    )

    def __call__(self, reward_B: Tensor) -> Tensor:
        return reward_B * 0 + 0.5


@dataclass(frozen=True)
class Cool:
    kind: ClassVar[str] = "advantage/scale"

    def __call__(self, advantage_B: Tensor, heat_B: Tensor) -> Result:
        return Result(advantage_B * heat_B, metrics={"heat/mean": float(heat_B.mean())})


@door(columns={"fevers": "fever_B"}, parameters={"use_std": "normalize_std"},
      tensors={"celsius": ("heats", lambda heat: heat + 273)})
@inherits(grpo)
def warm(*, feverish: bool = False, **parent: Any) -> Algorithm:
    base = grpo(**parent)
    names = (("heat_B", "fever_B"),) if feverish else ()
    chain = (*base.advantage[:-1], Use(Cool(), names), base.advantage[-1])
    return dataclasses.replace(base, probes=(Use(Feel(), names),), advantage=chain)


@inherits(warm)
def warmer(**parent: Any) -> Algorithm:
    return warm(**parent)
"""
CALL = {
    "rewards": torch.tensor([3.0, 1.0]), "groups": torch.tensor([0, 0]),
    "params": {"use_std": False},
}  # fmt: skip


@pytest.mark.parametrize("recipe", ["warm", "warmer"])
def test_a_column_of_ones_own_comes_through_the_padded_door(tmp_path, recipe):
    (tmp_path / "warmth.py").write_text(WARMTH)
    name = f"{tmp_path}/warmth.py:{recipe}"
    heats = torch.tensor([2.0, 5.0])
    assert functional.inputs(name, "advantages")["heats"] is True
    assert functional.advantages(name, **CALL, heats=heats).tolist() == [2.0, -5.0]
    assert functional.advantages(name, **CALL, celsius=heats - 273).tolist() == [2.0, -5.0]
    fever = {**CALL, "params": {"feverish": True, "use_std": False}}
    assert functional.advantages(name, **fever, fevers=heats).tolist() == [2.0, -5.0]
    with pytest.raises(UserError, match=r"needs heats \(column heat_B\)"):
        functional.advantages(name, **CALL)
    with pytest.raises(UserError, match="takes no heats, did you mean"):
        functional.advantages(name, **fever, heats=heats)
    with pytest.raises(UserError, match="celsius is heats: give one of the two"):
        functional.advantages(name, **CALL, heats=heats, celsius=heats)


def test_a_column_of_ones_own_is_trained_with(tmp_path):
    (tmp_path / "warmth.py").write_text(WARMTH)
    recipe = f'"{tmp_path}/warmth.py:warm"'
    training = {"steps": 1, "save_every": 0, "rollouts_every": 0}
    settings = settings_for(make_lab(tmp_path), recipe, training=training)
    lines = run_of(settings, tmp_path / "run")
    assert [line["heat/mean"] for line in lines if "heat/mean" in line] == [0.5]


def test_the_words_of_a_recipe_are_its_own():
    assert catalogue.recipe_called("rover_reward") == "rover"
    assert catalogue.recipe_called("grpo") == "grpo"
    names = [name for entry in catalogue.recipes() for name in (entry.name, *entry.also)]
    assert len(set(names)) == len(names)
    turns = functional.inputs("hiper_hae", "advantages")
    assert {"v_high", "v_low", "v_term"} <= turns.keys()
    assert "v1" not in turns
    rewards, groups = torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(UserError, match="no parameter divide_by_std"):
        functional.advantages(
            "grpo", rewards=rewards, groups=groups, params={"divide_by_std": False}
        )


@every("entry", catalogue.recipes())
def test_the_words_of_a_recipe_name_what_is_there(entry):
    recipe = entry.load()
    words = getattr(recipe, "door", None)
    if words is None:
        return
    assert words.also == entry.also
    names = compose(entry.name, {}, {})[0]
    own = [to[0] if isinstance(to, tuple) else to for to in words.parameters.values()]
    assert {name for name in own if name} <= {field.name for field in entry.fields}
    assert {*words.columns.values()} <= names.known.keys()
    assert {usual for usual, _ in words.tensors.values()} <= {*names.fills, *STRUCTURE}


def test_distinct_ids_are_no_row_numbers():
    column, rng = Column("id_B", "int", "", random="distinct"), torch.Generator().manual_seed(0)
    assert column.drawn((1200,), rng).unique().numel() == 1200
    assert column.drawn((9,), rng).max() >= 9
