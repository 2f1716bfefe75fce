import math

import pytest
import torch
from builders import (
    NAN,
    assert_equal_pushes,
    assert_same_push,
    clipped,
    learning,
    pushed,
    ragged_batch,
    stages,
)

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.method.schedule import Points
from strop.parts.loss.penalty.pull_nucleus_entropy import PullNucleusEntropy
from strop.recipes.grpo import grpo
from strop.recipes.siren import siren
from strop.support.errors import UserError

ANCHOR = "terms.entropy.objective.anchor"
COLUMN = "nucleus_entropy_0.8_T"


def with_nucleus(batch, name=COLUMN):
    """The batch with entropies of the nucleus."""
    rng = torch.Generator().manual_seed(5)
    values_T = torch.rand(batch.size("T"), generator=rng, dtype=torch.float64)
    return batch.set(**{name: torch.where(batch["mask_T"], values_T, NAN)})


def plain_mean(entropy_T, rows):
    """The mean over rollouts of the mean above the 80% quantile."""
    total = 0.0
    for _, tokens in rows:
        H = entropy_T[tokens]
        above = H.detach() > torch.quantile(H.detach(), 0.8)
        total = total + (H[above].mean() if above.any() else 0.0)
    return total / len(rows)


def test_worked_example_through_the_padded_call():
    # the peak mask of Hp = 0, .1, .2, .3, 1 keeps the last alone
    entropy = torch.tensor([[0.0, 0.1, 0.2, 0.3, 1.0]]).double()
    zero, mask = torch.zeros(1, 5).double(), torch.ones(1, 5, dtype=torch.bool)
    given = {"logp": zero, "logp_old": zero, "advantages": zero, "mask": mask}
    params = {"coef": 1.0, "anchor": 0.4}
    column = {"nucleus_entropy_0.8": entropy}
    loss, metrics = functional.policy_loss("siren", **given, **column, params=params)
    assert float(loss) == pytest.approx(0.36)
    assert metrics["siren/entropy"] == pytest.approx(1.0)
    # one token of five: .6365 without the token that crosses .8, .9810 with it
    probs = torch.tensor([0.5, 0.25, 0.15, 0.06, 0.04]).double()
    logits = torch.stack([torch.tensor([9.0, 0, 0, 0, 0]).double(), probs.log()])[None]
    pair = {k: v[:, :2] for k, v in given.items()}
    for variant, expected in (("paper", 0.9810), ("code", 0.6365)):
        own = {"coef": 1.0, "anchor": 0.0, "variant": variant}
        loss, metrics = functional.policy_loss("siren", **pair, logits=logits, params=own)
        assert float(loss) == pytest.approx(expected**2, abs=2e-4)


def test_gradient_through_logits_is_that_of_autograd():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 7, generator=rng, dtype=torch.float64).requires_grad_()
    zero, mask = torch.zeros(2, 6).double(), torch.ones(2, 6, dtype=torch.bool)
    params = {"coef": 2.0, "anchor": 0.3}
    loss, _ = functional.policy_loss(
        "siren", logp=zero, logp_old=zero, advantages=zero, mask=mask, logits=logits, params=params
    )
    sorted_p = torch.softmax(logits, -1).sort(-1, descending=True).values
    inside = sorted_p.cumsum(-1) - sorted_p < 0.8
    q = sorted_p * inside / (sorted_p * inside).sum(-1, keepdim=True)
    H = -torch.where(inside, q * torch.where(inside, q, 1).log(), 0).sum(-1)
    expected = 2.0 * (plain_mean(H.flatten(), [(0, range(6)), (1, range(6, 12))]) - 0.3) ** 2
    assert loss.item() == pytest.approx(expected.item())
    found, wanted = (torch.autograd.grad(each, logits)[0] for each in (loss, expected))
    torch.testing.assert_close(found, wanted)


def test_gradient_is_that_of_the_published_loss():
    algorithm = siren(coef=0.7, anchor=0.2)
    batch = with_nucleus(stages(algorithm, ragged_batch(1, lengths=(3, 8))))
    rows = learning(batch)
    length = float(batch["max_length"])

    def loss_of(logp_T, nucleus_T):
        policy = 0.0
        for i, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            token = clipped(ratio, batch["advantage_B"][i], 0.28, 0.28)
            policy = policy + token.sum() / (length * len(rows))
        return policy + 0.7 * (plain_mean(nucleus_T, rows) - 0.2) ** 2

    assert_same_push(algorithm, batch, loss_of, "logp_T", COLUMN)


def test_is_its_parent_without_a_weight_and_at_the_first_step():
    parent = grpo(
        clip_low=0.28, clip_high=0.28, aggregation="seq-mean-token-sum-norm", normalize_std=False
    )
    batch = with_nucleus(stages(parent, ragged_batch(1)))
    for ours in (siren(coef=0.0, anchor=0.4), siren()):
        assert_equal_pushes(ours, parent, batch)
        assert (pushed(ours, batch)[1][COLUMN] == 0).all()


def test_the_first_steps_entropy_is_the_anchor_of_all_later_ones():
    algorithm = siren()
    (control,) = algorithm.control
    state = control.part.init()
    for entropy in (0.8, 0.4, 0.3):
        metrics = {"siren/entropy": entropy, "entropy": 7.0}
        result = control.part(metrics=metrics, state=state, knobs=algorithm.paths())
        state, algorithm = result.state, algorithm.with_knobs(result.value)
        assert algorithm.paths()[ANCHOR] == 0.8


def test_composes_with_an_anchor_drawn_by_hand():
    curve = Points(((0.0, 0.6), (0.5, 0.3), (1.0, 0.3)))
    drawn = siren(anchor=curve)
    check(drawn)
    assert drawn.control == ()
    assert drawn.at_step(5, 20).paths()[ANCHOR] == pytest.approx(0.45)
    up = siren(pull="up", variant="code", top_p=0.9)
    check(up)
    assert "nucleus_below_entropy_0.9_T" in up.reads()
    assert up.control == ()


def test_the_bonus_of_the_ablation_and_mistakes():
    batch = with_nucleus(stages(siren(), ragged_batch(1)))
    loss, found, metrics = pushed(siren(pull="up", coef=1.0), batch)
    base, *_ = pushed(siren(pull="up", coef=0.0), batch)
    mean = plain_mean(batch[COLUMN], learning(batch))
    assert base - loss == pytest.approx(float(mean))
    assert metrics["siren/entropy"] == pytest.approx(float(mean))
    assert (found[COLUMN] <= 0).all()
    with pytest.raises(UserError, match="pull must be one of"):
        PullNucleusEntropy(pull="down")
    assert math.isfinite(loss)


def test_an_option_moves_the_column_that_is_read():
    moved = reading.override(siren(), "terms.entropy.objective.top_p", 0.5)
    assert moved.reads() - siren().reads() == {"nucleus_entropy_0.5_T"}
    assert COLUMN not in moved.reads()
    with pytest.raises(UserError, match=r"top_p is one number for the whole run"):
        PullNucleusEntropy(top_p=Points())
