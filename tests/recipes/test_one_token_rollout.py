import json
import math

import pytest
import torch
from builders import run
from models import Lab
from runs import Runner

from strop import functional
from strop.batch.batch import Batch
from strop.method.part import Draw
from strop.parts.loss.bound.reward_own_guesses import RewardOwnGuesses, drawn
from strop.parts.loss.bound.shape_by_likelihood import ShapeByLikelihood
from strop.parts.rollout.read_answers import ReadAnswers
from strop.recipes.one_token_rollout import one_token_rollout
from strop.support.errors import UserError


def seeds(num, seed=0):
    return torch.randint(2**62, (num,), generator=torch.Generator().manual_seed(seed))


def logits(num, vocabulary=6, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(num, vocabulary, generator=rng, dtype=torch.float64)


def gradient(part, logits_TV, id_T, seed_T=None):
    """dL/dlogits of the summed objective."""
    leaf = logits_TV.clone().requires_grad_()
    value = part(torch.log_softmax(leaf, -1), id_T, seed_T)
    return torch.autograd.grad(value.sum(), leaf)[0]


def test_worked_example():
    """Four guesses, one right: 1/4 on the token, -0.1/4 on each of the other three."""
    logq_TV = torch.log_softmax(logits(1), -1)
    part = RewardOwnGuesses(4, -0.1, 1.1)
    for seed in range(1000):
        seed_T = seeds(1, seed)
        guesses = drawn(torch.softmax(logq_TV / 1.1, -1), seed_T, 4)[0].tolist()
        if guesses.count(2) == 1:
            break
    leaf = logq_TV.clone().requires_grad_()
    found = part(leaf, torch.tensor([2]), seed_T)
    (weight_TV,) = torch.autograd.grad(found.sum(), leaf)
    expected = [-0.025 * guesses.count(token) for token in range(6)]
    expected[2] = 0.25
    assert weight_TV[0].tolist() == pytest.approx(expected)


def test_draws_follow_the_weights():
    weight_TV = torch.tensor([[2.0, 0.0, 1.0, 1.0]]).expand(200, 4)
    counts = torch.bincount(drawn(weight_TV, seeds(200, 3), 500).flatten(), minlength=4) / 100_000
    assert counts.tolist() == pytest.approx([0.5, 0.0, 0.25, 0.25], abs=0.006)


@pytest.mark.parametrize("kappa", [1.0, 1.3])
def test_many_guesses_come_near_their_expectation(kappa):
    logits_TV, id_T = logits(40), torch.arange(40) % 6
    exact = gradient(RewardOwnGuesses(0, -0.2, kappa), logits_TV, id_T)
    near = gradient(RewardOwnGuesses(20_000, -0.2, kappa), logits_TV, id_T, seeds(40))
    torch.testing.assert_close(near, exact, atol=0.012, rtol=0)
    assert float(exact.abs().max()) > 0.1


def test_expectation_at_temperature_one_is_fine_tuning_weighed_by_probability():
    logits_TV, id_T = logits(9), torch.arange(9) % 6
    ours = gradient(RewardOwnGuesses(0, -0.3, 1.0), logits_TV, id_T)
    leaf = logits_TV.clone().requires_grad_()
    logp_T = torch.log_softmax(leaf, -1).gather(1, id_T[:, None])[:, 0]
    plain = ShapeByLikelihood("power", 1.0)(logp_T, torch.ones(9).double())
    (dft,) = torch.autograd.grad(plain.value.sum(), leaf)
    torch.testing.assert_close(ours, 1.3 * dft)
    hot = gradient(RewardOwnGuesses(0, -0.3, 1.3), logits_TV, id_T)
    assert float((hot - ours).abs().max()) > 0.01  # and at no other temperature


def test_published_loss_through_the_padded_call():
    rng = torch.Generator().manual_seed(4)
    z = torch.randn(2, 3, 5, generator=rng, dtype=torch.float64).requires_grad_()
    ids = torch.randint(0, 5, (2, 3), generator=rng)
    mask = torch.tensor([[1, 1, 1], [0, 1, 0]])
    logq = torch.log_softmax(z, -1)
    logp = logq.gather(2, ids[..., None])[..., 0]
    params = {"K": 0, "beta": -0.1, "kappa": 1.2}
    loss, _ = functional.policy_loss(
        "one_token_rollout", logp=logp.detach(), logits=z, token_ids=ids, mask=mask, params=params
    )
    guess = torch.softmax(z.detach() / 1.2, -1)
    reward = torch.where(torch.arange(5) == ids[..., None], 1.0, -0.1)
    token = (guess * reward * logq).sum(-1)
    expected = -(token[0].mean() + token[1, 1]) / 2  # the mean of each answer's mean
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(
        torch.autograd.grad(loss, z), torch.autograd.grad(expected, z), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_impossible_tokens_and_missing_seeds():
    logq_TV = torch.log_softmax(torch.tensor([[0.0, -math.inf, 1.0]]).double(), -1)
    for part in (RewardOwnGuesses(0), RewardOwnGuesses(64)):
        found = part(logq_TV, torch.tensor([1]), seeds(1))
        assert torch.isfinite(found).all()
    with pytest.raises(UserError, match="seed_guesses"):
        RewardOwnGuesses(2)(logq_TV, torch.tensor([1]))
    assert one_token_rollout(K=0).probes == ()


def test_guesses_do_not_depend_on_the_rows_around_them():
    part, id_T = RewardOwnGuesses(8), torch.arange(12) % 6
    seed_T, logq_TV = seeds(12), torch.log_softmax(logits(12), -1)
    whole = part(logq_TV, id_T, seed_T)
    assert part(logq_TV[5:7], id_T[5:7], seed_T[5:7]).equal(whole[5:7])
    batch = Batch(
        {"turn_T": torch.zeros(12).long(), "rollout_K": torch.zeros(1).long(),
         "group_B": torch.zeros(1).long(), "uid_P": torch.zeros(1).long(),
         "logq_TV": logq_TV, "id_T": id_T, "guess_seed_T": seed_T}
    )  # fmt: skip
    assert run(part, batch).value.equal(whole)


def test_given_answers_become_likelier(tmp_path):
    lab = Lab.make(tmp_path)
    rows = [{"prompt": f"{n}+1:", "completion": "=12", "answer": "0"} for n in range(12)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw("one_token_rollout", training={"steps": 30, "save_every": 0})
    raw["algorithm"]["sampling.num_rollouts"] = 1
    run_of = Runner().whole(raw, tmp_path / "run")
    draws = tuple(Draw(uid, 1) for uid in run_of.world.pool)
    services = run_of.world.services
    batch = ReadAnswers().read(draws, services.texts, services.sampling)
    logp_T = run_of.world.policy.columns(batch, ("logp_T",), 1.0)["logp_T"][batch["mask_T"]]
    assert float(logp_T.mean()) > -0.5  # ln 22 = 3.1 nats below 0 at first


def test_no_guess_is_impossible_even_where_a_number_is_rounded_up_to_the_whole(monkeypatch):
    """The largest of the numbers in [0, 1) is 1 in 32 bits; the last two tokens have no weight."""
    highest = torch.full((1, 2), 1 - 2.0**-53, dtype=torch.float64)
    monkeypatch.setattr(
        "strop.parts.loss.bound.reward_own_guesses.uniforms", lambda *_: highest.clone()
    )
    assert drawn(torch.tensor([[0.3, 0.7, 0.0, 0.0]]), torch.zeros(1).long(), 2).tolist() == [
        [1, 1]
    ]
