"""Further names that the padded calls of `strop.functional` accept for a recipe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor

from strop.method.algorithm import Method

Recipe = Callable[..., Method]
One = TypeVar("One", bound=Recipe)
Made = tuple[str, Callable[[Tensor], Tensor] | None]
Factor = tuple[str, Callable[[Tensor], Tensor] | None]
Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Own = str | tuple[str, Callable[[Any], Any]] | None

# For parameters that TRL names differently: its values to ours.
VALUES: dict[str, dict[str | bool, str | bool]] = {
    "loss_type": {"grpo": "seq-mean-token-mean", "bnpo": "token-mean", "dapo": "token-mean",
                  "dr_grpo": "seq-mean-token-sum-norm"},
    "scale_rewards": {"group": True, "none": False, True: True, False: False},
}  # fmt: skip

INHERITED = ("parameters", "columns", "tensors", "series", "several", "factors", "instead")


@dataclass(frozen=True)
class Words:
    """Lets `strop.functional` accept the names of a recipe's own paper or code.

        @door(also=("spo_loss",), columns={"v_low": "value_low_K"},
              tensors={"probs": ("logp_beh", torch.log)})
        @inherits(grpo)
        def some_recipe(**parent: Any) -> Algorithm:

    A recipe that inherits has its parent's names too, except `also`.

    also: further names of the recipe. parameters: another name to the recipe's own parameter, to
    that and a conversion of the value, or to None where the name means something else in TRL or
    verl. columns: name of a tensor to the column that it fills. tensors: further name of a tensor
    to its usual one, and a conversion (None: none). series: name of numbers, one for each step of
    the run so far, to the column or metric that they are; the last one of a column is this step's.
    several: name of a tensor that stands for several, to the function that makes them. factors:
    name of a tensor [B, T] or [B] by which advantages are multiplied, to the part that it replaces
    (empty: none), and a conversion. instead: name that means nothing here, to what to give in its
    place. prepare: makes the recipe's own parameters of those given, where several determine one;
    prepared: names that are parameters of `prepare` alone.
    """

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

    def __call__(self, recipe: One) -> One:
        """The recipe with these names, beside those that it inherits."""
        recipe.door = self.beside(words_of(recipe))  # type: ignore[attr-defined]
        return recipe

    def beside(self, other: "Words") -> "Words":
        """Both sets of names; the other's `also`, `prepare` and `prepared` are not inherited."""
        both: dict[str, Any] = {
            name: {**getattr(other, name), **getattr(self, name)} for name in INHERITED
        }
        return replace(self, **both)


door = Words


def words_of(recipe: Any) -> Words:
    """The further names of a recipe; empty where it declares none."""
    found: Words = getattr(recipe, "door", Words())
    return found
