"""The logged reward of a step whose answers make a reward fail, or are failed by one."""

import pytest
import torch
from builders import flat_batch

from strop.support.exits import Exit
from strop.training.learner.step_metrics import _means, exit_metrics


@pytest.mark.parametrize("counted", [True, False])
def test_an_answer_that_breaks_its_reward_counts_in_the_mean(counted):
    # Two are judged, 1 and 0; two break the reward and count 0, or nothing; one is not to blame.
    exits = [Exit.DONE, Exit.TOKEN_LIMIT, Exit.EXCEPTION, Exit.TIMEOUT, Exit.UNREACHABLE]
    batch = flat_batch((1,) * 5, reward_B=[1.0, 0.0, 0.0, 0.0, 0.0]).set(
        exit_B=torch.tensor(exits),
        scored_B=torch.tensor([True, True, counted, counted, False]),
    )
    assert _means(batch) == {"reward": 1 / 4, "reward_judged": 1 / 2}
    shares = exit_metrics(batch)
    assert shares == dict.fromkeys(
        ("exit/token_limit", "exit/exception", "exit/timeout", "exit/unreachable"), 1 / 5
    )
