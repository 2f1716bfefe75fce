import pytest
import torch
from builders import run
from fakes.engine import TableEngine
from fakes.services import FakeGrading, FakeSampling, FakeServices, FakeTexts

from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.parts.sampling.draw_solvable_prompts import DrawSolvablePrompts
from strop.recipes.grpo import grpo
from strop.recipes.rif_rft import rif_rft
from strop.support.errors import UserError

POOL = (11, 12, 13, 14, 15)
RIGHT = [0, 1, 4, 8, 0]  # of 8 answers each


class Grading(FakeGrading):
    """Eight answers a prompt, so many of them right, in this order. `asked`: how many."""

    def __init__(self, right=RIGHT, unscored=()):
        super().__init__()
        self.right, self.unscored, self.asked = right, unscored, 0

    def grade(self, batch):
        self.asked += batch.size("B")
        row = torch.arange(8)
        return (
            super()
            .grade(batch)
            ._replace(
                outcome_B=torch.cat([(row < n).float() for n in self.right]),
                scored_B=~torch.isin(batch["group_B"], torch.tensor(self.unscored).long()),
            )
        )


def drawn(part, grading=None, state=None, seed=3):
    engine = TableEngine(lambda ids: (1.0, 0.0))
    texts, sampling = FakeTexts(dict.fromkeys(POOL, (1,))), FakeSampling(engine, answer_tokens=2)
    services = FakeServices(texts, grading or Grading(), sampling)
    rng = torch.Generator().manual_seed(seed)
    return run(part, None, pool=POOL, state=state or part.init(), rng=rng, services=services)


def test_worked_example():
    grading = Grading()
    first = drawn(DrawSolvablePrompts(num_prompts=3), grading)
    assert first.state["kept"] == (12, 13, 14)
    assert sorted(draw.uid for draw in first.value) == [12, 13, 14]
    assert first.metrics["data/frac_pool_kept"] == 0.6
    again = drawn(DrawSolvablePrompts(num_prompts=3), grading, first.state)
    assert grading.asked == 40  # once
    assert sorted(draw.uid for draw in again.value) == [12, 13, 14]


def test_mastered_and_unscored_prompts():
    part = DrawSolvablePrompts(num_prompts=2, drop_mastered=True)
    assert drawn(part).state["kept"] == (12, 13)
    assert drawn(part, Grading(unscored=(0,))).state["kept"] == (11, 12, 13)
    assert drawn(DrawSolvablePrompts(threshold=1)).state["kept"] == (13, 14)


def test_prompts_whose_answers_are_all_alike():
    telling = DrawSolvablePrompts(threshold=-1, spread=0.0)
    assert drawn(telling).state["kept"] == (12, 13)  # neither 0, 0 nor 8 of 8
    assert drawn(telling, Grading(unscored=(0,))).state["kept"] == (11, 12, 13)


def test_threshold_below_0_is_the_usual_order():
    grading = Grading()
    ours = drawn(DrawSolvablePrompts(4, 2, threshold=-1), grading)
    rng = torch.Generator().manual_seed(3)
    usual = DrawInShuffledOrder(4, 2)
    assert ours.value == usual(POOL, usual.init(), rng).value
    assert grading.asked == 0


def test_nothing_left_is_refused_and_the_recipe_is_grpo_on_the_rest():
    with pytest.raises(UserError, match="none of 5 prompts is kept"):
        drawn(DrawSolvablePrompts(), Grading(right=[0] * 5))
    with pytest.raises(UserError, match="threshold"):
        rif_rft(threshold=-2)
    ours, parent = rif_rft(), grpo()
    assert (ours.advantage, ours.terms, ours.selection) == (
        parent.advantage, parent.terms, parent.selection,
    )  # fmt: skip
