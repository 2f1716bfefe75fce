from builders import (
    assert_equal_pushes,
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    pushed,
    ragged_batch,
    stages,
)

from strop.recipes.clip_cov import clip_cov
from strop.recipes.grpo import grpo
from strop.training.learner import kernel


def test_worked_example():
    # covariances 1.725, -2.175, -1.625, 1.175: one of tokens 0 and 3 is dropped
    logp = [-0.1, -4.0, -0.2, -3.0]
    batch = flat_batch((4,), logp_T=logp, logp_old_T=logp, advantage_T=[1.0, 1.0, -1.0, -1.0])
    seen = set()
    for seed in range(20):
        found = pushed(clip_cov(), batch, seed)[1]["logp_T"].tolist()
        seen.add(tuple(found))
    assert seen == {(0, -0.25, 0.25, 0.25), (-0.25, -0.25, 0.25, 0)}


def test_composes():
    assert kernel.scope_of(clip_cov().terms) == "update"


def test_equals_the_clipped_loss_without_a_candidate():
    batch = stages(clip_cov(), ragged_batch(1))
    ours = clip_cov(clip_cov_lb=80.0, clip_cov_ub=90.0)
    assert_equal_pushes(ours, grpo(aggregation="token-mean"), batch)


def test_gradient_is_that_of_the_published_loss():
    algorithm = clip_cov(clip_cov_ratio=1.0, clip_cov_lb=0.1, clip_cov_ub=1.0)  # all candidates
    batch = stages(algorithm, ragged_batch(1, groups=(4, 4)))
    rows = [t for _, tokens in learning(batch) for t in tokens]
    advantage_N = batch["advantage_T"][rows]

    def loss_of(logp_T):
        logp_N = logp_T[rows]
        ratio_N = (logp_N - batch["logp_old_T"][rows]).exp()
        loss_N = clipped(ratio_N, advantage_N, 0.2, 0.2)
        cov_N = (advantage_N - advantage_N.mean()) * (logp_N - logp_N.mean()).detach()
        free_N = loss_N == -advantage_N * ratio_N
        dropped_N = (cov_N > 0.1) & (cov_N < 1.0) & free_N
        assert 0 < int(dropped_N.sum()) < len(rows)
        return (loss_N * ~dropped_N).sum() / len(rows)

    assert_same_push(algorithm, batch, loss_of)
