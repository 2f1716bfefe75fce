import torch
from builders import flat_batch, run
from fakes.services import FakeServices
from models import Lab
from runs import world_of

from strop.method.part import Use, call
from strop.method.services import Graded
from strop.parts.reward.score_with_verifiers import ScoreWithVerifiers
from strop.support.exits import Exit

REWARDS = '''
def length(completions, **columns):
    return [float(len(text)) for text in completions]


def digits(completions, **columns):
    """Not applicable to an answer without any."""
    found = [sum(c.isdigit() for c in text) for text in completions]
    return [float(n) if n else None for n in found]


def breaks(completions, **columns):
    if any("+" in text for text in completions):
        raise RuntimeError("cannot read a sum")
    return [0.0] * len(completions)
'''


class Grading:
    """Answers with the same grades, whatever it is shown."""

    def grade(self, batch):
        return Graded(
            torch.tensor([[1.0, 3.0], [torch.nan, 2.0]]), torch.tensor([2.5, 1.0]),
            torch.tensor([True, False]), {"sums/seen": 2.0}, torch.tensor([0, 9]),
        )  # fmt: skip


def test_columns_are_what_grading_says():
    batch = flat_batch((1, 2))
    outcome = run(ScoreWithVerifiers(), batch, services=FakeServices(grading=Grading()))
    reward_BM, outcome_B, reward_B, scored_B, exit_B = outcome.value
    assert exit_B.tolist() == [0, 9]
    assert reward_BM.nan_to_num(-1).tolist() == [[1, 3], [-1, 2]]
    assert outcome_B.tolist() == reward_B.tolist() == [2.5, 1.0]
    assert scored_B.tolist() == [True, False]
    assert outcome.metrics == {"sums/seen": 2.0}


def test_the_reward_is_the_weighted_sum_of_the_functions_that_gave_a_number(tmp_path):
    lab = Lab.make(tmp_path)
    lab.rewards.write_text(REWARDS, encoding="utf-8")
    names = ("length", "digits", "breaks")
    raw = lab.raw()
    raw["reward"] = {
        "functions": [f"{lab.rewards}:{name}" for name in names], "weights": [0.5, 2.0, 1.0],
    }  # fmt: skip
    _, world = world_of(raw)
    texts = ("34)", ")(", "7+")
    ids = [id for text in texts for id in world.services.texts.encode(text)]
    batch = flat_batch([len(text) for text in texts], (0, 0, 1), id_T=torch.tensor(ids))
    batch = batch.set(
        uid_P=torch.tensor(world.pool[:2]), rollout_uid_B=torch.arange(3),
        truncated_B=torch.zeros(3, dtype=torch.bool),
    )  # fmt: skip
    try:
        outcome = call(Use(ScoreWithVerifiers()), batch, services=world.services)
    finally:
        world.services.close()
    reward_BM, outcome_B, reward_B, scored_B, exit_B = outcome.value
    # 0.5 * 3 + 2 * 2; 0.5 * 2, the digits not applicable; the third function raised
    assert outcome_B[:2].tolist() == [5.5, 1.0]
    assert reward_B.equal(outcome_B)
    assert scored_B.all()
    assert exit_B.tolist() == [Exit.DONE, Exit.DONE, Exit.EXCEPTION]
    # 0.5 * 2 + 2 * 1 + what a failure counts
    assert outcome_B[2] == 3.0
    assert reward_BM.nan_to_num(-1).tolist() == [[3, 2, 0], [2, -1, 0], [2, 1, 0]]
