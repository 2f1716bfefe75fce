"""The words of a recipe's own at the padded door."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from strop.method.algorithm import Method

Recipe = Callable[..., Method]
One = TypeVar("One", bound=Recipe)
Made = tuple[str, Callable[[Tensor], Tensor] | None]
Factor = tuple[str, Callable[[Tensor], Tensor] | None]
Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Own = str | tuple[str, Callable[[Any], Any]] | None

# Of parameters that TRL calls by another name, its values and ours.
VALUES: dict[str, dict[str | bool, str | bool]] = {
    "loss_type": {"grpo": "seq-mean-token-mean", "bnpo": "token-mean", "dapo": "token-mean",
                  "dr_grpo": "seq-mean-token-sum-norm"},
    "scale_rewards": {"group": True, "none": False, True: True, False: False},
}  # fmt: skip


@dataclass(frozen=True)
class Words:
    """also: names of the recipe. parameters: other name to the recipe's own, to that and what is
    made of the value, or to None where TRL's or verl's name means something else here. columns:
    name of a tensor to the column that it fills. tensors: further name to the usual one, and what
    is made of the tensor (None: nothing). series: name of numbers, one a step of the run so far, to
    the column or metric that each is; the last one of a column is this step's. several: name of a
    tensor that stands for several, to what makes them. factors: name of a tensor [B, T] or [B] that
    advantages are multiplied by, to the part in whose place it is (empty: none's), and what is made
    of the tensor. instead: name that means nothing here, to what to give in its place. prepare: the
    recipe's own parameters from those given, where several stand for one; prepared: names of such
    that are none of its own."""

    also: tuple[str, ...] = ()
    parameters: Mapping[str, Own] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, Made] = field(default_factory=dict)
    series: Mapping[str, str] = field(default_factory=dict)
    prepare: Prepare | None = None
    several: Mapping[str, Callable[[Tensor], dict[str, Tensor]]] = field(default_factory=dict)
    factors: Mapping[str, Factor] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    prepared: tuple[str, ...] = ()

    def beside(self, other: "Words") -> "Words":
        """These and the other's; its names of a recipe and what it prepares are not taken over."""
        return Words(
            self.also,
            {**other.parameters, **self.parameters},
            {**other.columns, **self.columns},
            {**other.tensors, **self.tensors},
            {**other.series, **self.series},
            self.prepare,
            {**other.several, **self.several},
            {**other.factors, **self.factors},
            {**other.instead, **self.instead},
            self.prepared,
        )


def door(
    *,
    also: tuple[str, ...] = (),
    parameters: Mapping[str, Own] | None = None,
    columns: Mapping[str, str] | None = None,
    tensors: Mapping[str, Made] | None = None,
    series: Mapping[str, str] | None = None,
    prepare: Prepare | None = None,
    several: Mapping[str, Callable[[Tensor], dict[str, Tensor]]] | None = None,
    factors: Mapping[str, Factor] | None = None,
    instead: Mapping[str, str] | None = None,
    prepared: tuple[str, ...] = (),
) -> Callable[[One], One]:
    """Let `strop.functional` take a recipe by the words of its own paper or code.

        @door(also=("spo_loss",), columns={"v_low": "value_low_K"},
              tensors={"probs": ("logp_beh", torch.log)})
        @inherits(grpo)
        def some_recipe(**parent: Any) -> Algorithm:

    A recipe that inherits has its parent's words too, but for its names.
    """

    def decorate(recipe: One) -> One:
        words = Words(
            also, parameters or {}, columns or {}, tensors or {}, series or {}, prepare,
            several or {}, factors or {}, instead or {}, prepared,
        )  # fmt: skip
        recipe.door = words.beside(words_of(recipe))  # type: ignore[attr-defined]
        return recipe

    return decorate


def words_of(recipe: Any) -> Words:
    """The recipe's words; none where it brings none."""
    found: Words = getattr(recipe, "door", Words())
    return found
