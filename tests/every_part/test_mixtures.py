"""Compositions that pass `check` run: random ones, and parts that read all allowed columns."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from mixtures import Ground, mixture

from strop.batch.columns import OF_EXPERTS, STANDARD, Column
from strop.catalogue.seams import CHAINS, PLACE_OF, SINGLE, kinds_at
from strop.method import notation
from strop.method.algorithm import Algorithm
from strop.method.check import check
from strop.method.part import DRAWN_BY, Curated, Selected, Update, Use
from strop.support.errors import UserError

NAMES = tuple(c.name for c in STANDARD if not c.numbered and c.name not in OF_EXPERTS)
# For each place: the columns that the part writes, and its result.
READERS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "reward": (("num_rollouts",), lambda given: torch.zeros(given["num_rollouts"])),
    "curation": (("mask_T", "num_rollouts"), lambda given: Curated(
        torch.ones(given["num_rollouts"], dtype=torch.bool), "read")),
    "probes": (("num_rollouts",), lambda given: torch.zeros(given["num_rollouts"])),
    "advantage": (("num_rollouts",), lambda given: torch.zeros(given["num_rollouts"])),
    "selection": (("mask_T",), lambda given: Selected(given["mask_T"], given["mask_T"], "read")),
    "on": (("mask_T",), lambda given: Selected(given["mask_T"], given["mask_T"], "read")),
    "ratio": (("logp_T", "logp_old_T"), lambda given: given["logp_T"] - given["logp_old_T"]),
    "correction": (("mask_T",), lambda given: given["mask_T"].double()),
    "objective": (("logp_T",), lambda given: given["logp_T"] * 0.5),
    "average": (("mask_T",), lambda given: given["mask_T"].double() / 9),
    "rates": (("num_rollouts",), lambda given: torch.tensor(1.0)),
    "plan": (("mask_T",), lambda given: (Update(given[name]) for name in ["mask_T"])),
}  # fmt: skip


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    found = Ground(tmp_path_factory.mktemp("ground"))
    yield found
    found.close()


def taking(names, does):
    """A method with these columns as parameters."""

    def method(self: Any, **given: Any) -> Any:
        return does(given)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    method.__signature__ = inspect.Signature([own, *more])
    return method


def reader(place, columns, hook=""):
    """A part of the place that reads these columns in its call, or in `observe` or `update`."""
    always, does = READERS[place]
    names = dict.fromkeys((*always, *(() if hook else columns)))
    kind = "probe" if place in ("reward", "advantage") else kinds_at(PLACE_OF[place])[0]
    methods: dict[str, Any] = {"__call__": taking(names, does), "kind": kind}
    if kind == "probe":
        methods["writes"] = (f"seen_{place}{hook}_B",)
        methods["declares"] = (Column(f"seen_{place}{hook}_B", "float", "zeros"),)
        methods["update"] = taking((f"seen_{place}{hook}_B", "state"), lambda given: None)
    if hook:
        own = methods.get("writes", ()) if hook == "update" else ()
        methods[hook] = taking((*own, *columns, "state"), lambda given: None)
    made = type("Reader", (), {**methods, "__annotations__": {"kind": ClassVar[str]}})
    return Use(dataclasses.dataclass(frozen=True)(made)())


def placed(algorithm: Algorithm, place: str, use: Use) -> Algorithm:
    """The algorithm with the part at the end of a chain, or in the place of what is there."""
    if place in CHAINS:
        return dataclasses.replace(algorithm, **{place: (*getattr(algorithm, place), use)})
    if place in SINGLE:
        return dataclasses.replace(algorithm, **{place: use})
    slots = {place: use, **({"ratio": None} if place == "objective" else {})}
    terms = (dataclasses.replace(algorithm.terms[0], **slots), *algorithm.terms[1:])
    return dataclasses.replace(algorithm, terms=terms)


def reading(algorithm: Algorithm, place: str, hook: str = "") -> tuple[str, ...]:
    """The columns that `check` lets a part of the place read."""
    left = list(NAMES)
    while True:
        try:
            check(placed(algorithm, place, reader(place, left, hook)))
        except UserError as error:
            refused = re.search(r"reads? (\w+)|, but \w+ reads (\w+)", str(error))
            left.remove(refused[1])
        else:
            return tuple(left)


def test_compositions_that_pass_the_check_run(ground):
    """A few; `python tests/every_part/mixtures.py 0 2000` tries more."""
    found = [mixed for mixed in map(mixture, range(20)) if mixed is not None]
    assert len(found) >= 5
    for mixed in found[:5]:
        outcome = ground.run(mixed)
        assert outcome.startswith(("ran", "refused")), f"{mixed}: {outcome}"


@pytest.mark.parametrize("recipe", ["gae", "gigpo(beta=0.1)"])
def test_a_part_gets_every_column_that_it_may_ask_for(recipe, ground):
    before = notation.recipe(recipe).algorithms[0]
    wanted = {place: reading(before, place) for place in READERS}
    late = ("logp_old_T", "logp_T", "log_ratio_T", "share_T")
    given = {place: [name for name in late if name in wanted[place]] for place in READERS}
    assert given["curation"] == []
    assert given["probes"] == given["average"] == ["logp_old_T"]
    assert given["ratio"] == ["logp_old_T", "logp_T"]

    def everywhere(algorithm: Algorithm) -> Algorithm:
        for place, columns in wanted.items():
            if place not in ("objective", "plan"):
                twice = DRAWN_BY if place == "correction" else ()  # the ratio has it
                kept = [name for name in columns if name not in twice]
                algorithm = placed(algorithm, place, reader(place, kept))
        for place, hook in (("reward", "observe"), ("probes", "update")):
            columns = reading(before, place, hook)
            algorithm = placed(algorithm, place, reader(place, columns, hook))
        check(algorithm)
        return algorithm

    def at_the_loss(algorithm: Algorithm) -> Algorithm:
        for place in ("objective", "plan"):
            algorithm = placed(algorithm, place, reader(place, wanted[place]))
        return algorithm

    assert ground.run_changed(recipe, everywhere) == "ran"
    assert ground.run_changed(recipe, at_the_loss) == "ran"


@dataclasses.dataclass(frozen=True)
class FollowRolloutAdvantage:
    kind: ClassVar[str] = "loss/bound"

    def __call__(self, logp_T, advantage_B, rollout_T):
        return logp_T * advantage_B[rollout_T]


@pytest.mark.parametrize("objective", [FollowRolloutAdvantage(), None])
def test_a_loss_that_reads_no_advantage_of_tokens_needs_none(objective, ground):
    """And the table of tokens is written without."""

    def change(algorithm: Algorithm) -> Algorithm:
        kept = tuple(use for use in algorithm.advantage if "spread" not in use.label)
        bare = dataclasses.replace(algorithm, advantage=kept)
        return placed(bare, "objective", Use(objective)) if objective is not None else bare

    assert ground.run_changed("grpo" if objective else "sft", change) == "ran"
