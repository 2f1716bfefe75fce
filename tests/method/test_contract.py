"""How a part's class is written: mistakes that Python allows are found before anything runs."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import Tensor

from strop.method.check import check
from strop.method.part import Use
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@dataclass(frozen=True)
class NoSelf:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(advantage_B: Tensor) -> Tensor:  # type: ignore[misc]
        return advantage_B


@dataclass(frozen=True)
class NoParameter:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__() -> int:  # type: ignore[misc]
        return 1


@dataclass(frozen=True)
class ByPlace:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, *columns: Tensor) -> Tensor:
        return columns[0]


@dataclass(frozen=True)
class AnyName:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, **columns: Tensor) -> Tensor:
        return columns["advantage_B"]


@dataclass(frozen=True)
class FirstState:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, advantage_B: Tensor, state: dict[str, int]) -> Tensor:
        return advantage_B


@dataclass(frozen=True)
class Letters:
    kind: ClassVar[str] = "advantage/baseline"
    writes: ClassVar[str] = "advantage_B"

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (NoSelf(), "advantage: no_self has a `__call__` without self: write `def __call__.self"),
        (NoParameter(), "advantage: no_parameter has a `__call__` without self"),
        (ByPlace(), r"by_place takes `\*columns: .*` in its `__call__`: name each column"),
        (AnyName(), r"any_name takes `\*\*columns: .*` in its `__call__`: name each column"),
        (FirstState(), "first_state takes state and does not say what the first one is: give its "
         r"class `def init\(self\)`"),
        (Letters(), r'letters has writes = "advantage_B", a text: write a tuple, writes = \("adv'),
    ],
)  # fmt: skip
def test_a_call_that_strop_cannot_make_is_refused(part, message):
    method = grpo()
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(method, advantage=(Use(part), *method.advantage)))
