import pytest
import torch
from fakes.engine import TableEngine
from fakes.services import TableServices

from strop.errors import UserError
from strop.recipes.grpo import grpo
from strop.recipes.rif_rft import rif_rft
from strop.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.sampling.draw_solvable_prompts import DrawSolvablePrompts

POOL = (11, 12, 13, 14, 15)
RIGHT = [0, 1, 4, 8, 0]  # of 8 answers each


class Answers:
    """Eight answers a prompt, so many of them right, in this order."""

    stop_ids = (0,)
    max_tokens = 2

    def __init__(self, right=RIGHT, unscored=()):
        self.right, self.unscored, self.asked = right, unscored, 0
        self.services = TableServices(
            TableEngine(lambda ids: (1.0, 0.0)), dict.fromkeys(POOL, (1,))
        )

    def __getattr__(self, name):
        return getattr(self.services, name)

    def grade(self, batch):
        found = self.services.grade(batch)
        self.asked += batch.size("B")
        row = torch.arange(8)
        found.outcome_B = torch.cat([(row < n).float() for n in self.right])
        found.scored_B = ~torch.isin(batch["group_B"], torch.tensor(self.unscored).long())
        return found


def drawn(part, services=None, state=None, seed=3):
    rng = torch.Generator().manual_seed(seed)
    return part(POOL, state or part.init(), rng, services or Answers())


def test_worked_example():
    services = Answers()
    first = drawn(DrawSolvablePrompts(num_prompts=3), services)
    assert first.state["kept"] == (12, 13, 14)
    assert sorted(draw.uid for draw in first.value) == [12, 13, 14]
    assert first.metrics["data/frac_pool_kept"] == 0.6
    again = drawn(DrawSolvablePrompts(num_prompts=3), services, first.state)
    assert services.asked == 40  # once
    assert sorted(draw.uid for draw in again.value) == [12, 13, 14]


def test_mastered_and_unscored_prompts():
    part = DrawSolvablePrompts(num_prompts=2, drop_mastered=True)
    assert drawn(part).state["kept"] == (12, 13)
    assert drawn(part, Answers(unscored=(0,))).state["kept"] == (11, 12, 13)
    assert drawn(DrawSolvablePrompts(threshold=1)).state["kept"] == (13, 14)


def test_threshold_below_0_is_the_usual_order():
    services = Answers()
    ours = drawn(DrawSolvablePrompts(4, 2, threshold=-1), services)
    rng = torch.Generator().manual_seed(3)
    usual = DrawInShuffledOrder(4, 2)
    assert ours.value == usual(POOL, usual.init(), rng).value
    assert services.asked == 0


def test_nothing_left_is_refused_and_the_recipe_is_grpo_on_the_rest():
    with pytest.raises(UserError, match="none of 5 prompts is kept"):
        drawn(DrawSolvablePrompts(), Answers(right=[0] * 5))
    with pytest.raises(UserError, match="threshold"):
        rif_rft(threshold=-2)
    ours, parent = rif_rft(), grpo()
    assert (ours.advantage, ours.terms, ours.selection) == (
        parent.advantage, parent.terms, parent.selection,
    )  # fmt: skip
