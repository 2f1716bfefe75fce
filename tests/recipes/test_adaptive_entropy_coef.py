import pytest
import torch
from builders import assert_same_push, clipped, learning, pushed, ragged_batch, stages

from strop.method import part as parts
from strop.method.check import check
from strop.recipes.adaptive_entropy_coef import adaptive_entropy_coef
from strop.recipes.grpo import grpo


def test_worked_example():
    # c0 .01, floor .2: the term's coefficient in the five steps and the one after
    algorithm = adaptive_entropy_coef(c0=0.01)
    (control,) = algorithm.control
    state, knobs, applied = control.part.init(), {}, []
    for entropy in (0.3, 0.19, 0.18, 0.25, 0.1):
        applied.append(algorithm.with_knobs(knobs).terms[-1].coef)
        result = parts.call(control, None, metrics={"entropy": entropy}, state=state)
        state, knobs = result.state, result.value
    applied.append(algorithm.with_knobs(knobs).terms[-1].coef)
    assert applied == pytest.approx([0, 0, 0.01, 0.015, 0, 0.015])


def test_composes():
    algorithm = adaptive_entropy_coef(target=0.5, delta=0.1, c_min=0.01, c_max=0.3)
    check(algorithm)
    part = algorithm.control[0].part
    assert (part.target, part.delta, part.bounds) == (0.5, 0.1, (0.01, 0.3))


def test_starts_as_its_parent():
    algorithm = adaptive_entropy_coef()
    batch = stages(algorithm, ragged_batch(1))
    loss, found, _ = pushed(algorithm, batch)
    parent_loss, parent, _ = pushed(grpo(aggregation="token-mean"), batch)
    assert loss == pytest.approx(parent_loss, rel=1e-12)
    torch.testing.assert_close(found["logp_T"], parent["logp_T"])
    assert (found["entropy_T"] == 0).all()


def test_gradient_is_that_of_the_published_loss():
    algorithm = adaptive_entropy_coef().with_knobs({"terms.entropy.coef": 0.03})
    batch = stages(algorithm, ragged_batch(1))

    def loss_of(logp_T, entropy_T):
        count = sum(len(tokens) for _, tokens in learning(batch))
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            token = clipped(ratio, batch["advantage_B"][i], 0.2, 0.2) - 0.03 * entropy_T[tokens]
            total = total + token.sum() / count
        return total

    assert_same_push(algorithm, batch, loss_of, "logp_T", "entropy_T")
