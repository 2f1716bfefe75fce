"""Curation that asks for more answers of a group: they are counted, in every way to draw them."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from strop.auditing.bench import Uncountable
from strop.auditing.estimate import Audit, Limits, audit
from strop.auditing.tree import Tree, random_policy, random_tree
from strop.batch.batch import Batch
from strop.method import notation
from strop.method.part import Curated, Draw, Result, Use

BANDIT = Tree(1, 2, torch.tensor([[0.0, 1.0]]))
PAIR = Tree(1, 2, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


@dataclass(frozen=True)
class AskForMore:
    """Asks for `more` answers of every group, in each of some rounds."""

    kind = "curation"
    more: int = 1
    rounds: int = 1
    prompt: tuple[int, ...] = ()

    def init(self) -> int:
        """No round has started."""
        return 0

    def __call__(self, batch: Batch, scored_B: Tensor, state: int) -> Result:
        columns: dict[str, Any] = {"prompt_ids": self.prompt} if self.prompt else {}
        ask = tuple(Draw(uid, self.more, columns) for uid in batch["uid_P"].tolist())
        asks = state < self.rounds
        curated = Curated(torch.ones_like(scored_B), "none", ask=ask if asks else ())
        return Result(curated, state + 1 if asks else 0)


def found(method: str, size: int, tree: Tree, *parts: Any, **options: Any) -> Audit:
    theta = random_policy(tree, 0.3, seed=3)
    algorithm = notation.recipe(f"{method}(num_rollouts={size})")
    curation = (*(Use(part) for part in parts), *algorithm.curation)
    return audit(
        dataclasses.replace(algorithm, curation=curation), tree, theta, group_size=size, **options
    )


@pytest.mark.parametrize("tree", [random_tree(2, 2, seed=1), PAIR])
@pytest.mark.parametrize("method", ["grpo", "trloo"])  # of the second one, tokens are turns
@pytest.mark.parametrize("part", [AskForMore(2), AskForMore(1, rounds=2)])
def test_answers_in_several_rounds_are_what_they_are_in_one(
    method: str, tree: Tree, part: AskForMore
) -> None:
    once, later = found(method, 3, tree), found(method, 1, tree, part)
    assert once.exact
    assert later.exact
    for name in ("scale", "bias", "noise", "error", "entropy_change", "no_signal", "thrown_away"):
        one, other = getattr(once, name).value, getattr(later, name).value
        assert other == pytest.approx(one, rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize("success", [0.1, 0.3])
def test_hard_prompts_count_in_dars(success: float) -> None:
    """No right answer of four: six more. So nothing moves where ten are wrong, or four right."""
    theta = random_policy(BANDIT, success, seed=3)
    told = audit(notation.recipe("dars(num_rollouts=4)"), BANDIT, theta, group_size=4)
    assert told.exact
    assert told.thrown_away.value == 0
    silent = (1 - success) ** 10 + success**4
    assert told.no_signal.value == pytest.approx(silent, rel=1e-5)


def test_where_there_are_too_many_ways_answers_are_drawn() -> None:
    tree = random_tree(2, 2, seed=1)
    few = Limits(most=34, draws=200)  # 4 groups of one answer have 10 ways to draw two more
    told, exact = (found("grpo", 1, tree, AskForMore(2), limits=each) for each in (few, Limits()))
    assert found("grpo", 1, tree, AskForMore(2), limits=Limits(most=40)).exact
    assert not told.exact
    assert told.num_groups == 200
    assert told.scale.value == pytest.approx(exact.scale.value, abs=2 * told.scale.within)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (AskForMore(prompt=(1, 2)), "asks for answers to other prompts than those drawn"),
        (AskForMore(rounds=4), "asks for more answers of a group in 3 rounds"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    part: AskForMore, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.auditing.estimate.MOST_ROUNDS", 3)
    assert found("grpo", 1, BANDIT, AskForMore(rounds=3)).exact
    with pytest.raises(Uncountable, match=message):
        found("grpo", 1, BANDIT, part)
