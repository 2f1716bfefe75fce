"""The covariance of log-probabilities and advantages, which moves entropy."""

import numpy as np
import pytest
import torch
from builders import NAN, flat_batch

from strop.training.learner.step_metrics import step_metrics

KEY = "advantage/logp_covariance"


def measured(logp, advantage, **columns):
    num = len(logp)
    batch = flat_batch(
        [1] * num, logp_sampler_T=logp, advantage_T=advantage,
        advantage_B=advantage, reward_B=[0.0] * num, outcome_B=[0.0] * num,
        entropy_behavior_T=[0.5] * num, version_T=torch.zeros(num, dtype=torch.int64),
        step=torch.tensor(1), id_T=torch.zeros(num, dtype=torch.int64), **columns,
    )  # fmt: skip
    return step_metrics(batch, torch.ones(num, dtype=torch.bool))[KEY]


def test_of_four_tokens():
    # covariances 1.725, -2.175, -1.625 and 1.175 by hand
    logp, advantage = [-0.1, -4.0, -0.2, -3.0], [1.0, 1.0, -1.0, -1.0]
    assert measured(logp, advantage) == pytest.approx(-0.225)
    assert measured(logp, [2.0] * 4) == 0.0
    void = {"scored_B": torch.tensor([True] * 5 + [False])}
    assert measured([*logp, NAN, -1.0], [*advantage, 9.0, 9.0], **void) == pytest.approx(-0.225)


def test_a_small_natural_gradient_step_changes_entropy_by_minus_the_covariance():
    rng = np.random.default_rng(1)
    logits, advantage = rng.normal(size=6), rng.normal(size=6)

    def entropy(z):
        p = np.exp(z) / np.exp(z).sum()
        return -(p * np.log(p)).sum()

    p = np.exp(logits) / np.exp(logits).sum()
    drawn = rng.choice(6, size=100_000, p=p)
    eta = 1e-3  # a natural-gradient step moves every logit by eta times its advantage
    change = entropy(logits + eta * advantage) - entropy(logits)
    covariance = measured(np.log(p)[drawn].tolist(), advantage[drawn].tolist())
    assert change / eta == pytest.approx(-covariance, rel=0.03)
