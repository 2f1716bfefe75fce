"""The shape and dtype that a column's name states are checked at a part's call."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from builders import flat_batch
from torch import Tensor

from strop.batch.columns import Column
from strop.batch.columns import _is as is_of
from strop.method import part as parts
from strop.method.part import Curated, Use
from strop.method.tensors import checked
from strop.support.errors import UserError


@dataclass(frozen=True)
class Gives:
    """A part that gives what it is told to."""

    kind: ClassVar[str] = "probe"
    writes: ClassVar[tuple[str, ...]] = ("luck_B",)
    declares: ClassVar[tuple[Column, ...]] = (Column("luck_B", "float", "luck"),)
    value: Tensor

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return self.value


@dataclass(frozen=True)
class Keeps:
    """A curation that keeps what it is told to."""

    kind: ClassVar[str] = "curation"
    value: Tensor

    def __call__(self, advantage_B: Tensor) -> Curated:
        return Curated(self.value, "told to")


SAID = [
    (torch.zeros(2), r"part gives gives luck_B as \[2\], it must be the shape \[rollouts=3\]"),
    (torch.zeros(3, 1), r"gives luck_B as \[3, 1\], it must be the shape \[rollouts=3\]"),
    (torch.zeros(3, dtype=torch.int64), "gives luck_B as int64, it must be float"),
]


def test_kinds_of_numbers_are_told_apart():
    dtypes = {"float": torch.float32, "int": torch.int32, "bool": torch.bool}
    for wanted in dtypes:
        fits = {kind for kind, dtype in dtypes.items() if is_of(wanted, dtype)}
        assert fits == {wanted}


@pytest.mark.parametrize(("value", "message"), SAID)
def test_what_a_part_gives_is_checked(value, message):
    batch = flat_batch((1, 1, 1), advantage_B=[3.0, 1.0, 2.0])
    with pytest.raises(UserError, match=message):
        parts.call(Use(Gives(value)), batch)


def test_a_column_without_the_letter_of_its_table_is_said():
    batch, use = flat_batch((1, 1, 1), advantage_B=[3.0, 1.0, 2.0]), Gives(torch.zeros(3))
    with pytest.raises(UserError, match=r"gives luck as \[3\], but its name lacks the letter of"):
        parts.call(Use(use, columns=(("luck_B", "luck"),)), batch)


def test_a_curations_mask_is_checked():
    batch = flat_batch((1, 1, 1), advantage_B=[3.0, 1.0, 2.0])
    assert parts.call(Use(Keeps(torch.ones(3, dtype=torch.bool))), batch).value.reason == "told to"
    with pytest.raises(UserError, match="part keeps gives scored_B as int64, it must be bool"):
        parts.call(Use(Keeps(torch.ones(3, dtype=torch.int64))), batch)


def test_what_it_reads_is_checked_and_nothing_where_nobody_asks():
    batch = flat_batch((1, 1, 1)).set(advantage_B=torch.ones(3, dtype=torch.bool))
    message = "part gives reads advantage_B as bool, it must be float"
    with checked(), pytest.raises(UserError, match=message):
        parts.call(Use(Gives(torch.zeros(3))), batch)
    with checked(on=False):
        assert parts.call(Use(Gives(torch.zeros(3))), batch).value.shape == (3,)
    with checked():
        renamed = Use(Gives(torch.zeros(3)), (("luck_B", "fate_B"), ("advantage_B", "luck_K")))
        with pytest.raises(UserError, match=r"part gives reads luck_K as"):
            parts.call(renamed, batch.set(luck_K=torch.ones(3, dtype=torch.bool)))
    assert parts.observer is None
