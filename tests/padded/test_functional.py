"""`strop.functional` by hand: numbers of the method cards, errors, helpers."""

import math

import pytest
import torch
from builders import f64

from strop import functional
from strop.method.schedule import Linear
from strop.support.errors import UserError

REWARDS, GROUPS = f64(1, 0, 0, 1, 1), torch.tensor([9, -4, 9, -4, 9])
MASK = torch.tensor([[0, 1, 1], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]]).bool()


def test_group_advantages_of_unsorted_groups():
    # group 9: rewards 1, 0, 1, mean 2/3, unbiased std sqrt(1/3); group -4: 0, 1, std sqrt(1/2)
    found = functional.advantages(
        "grpo", rewards=REWARDS, groups=GROUPS, mask=MASK, params={"eps": 0.0}
    )
    third, half = 1 / math.sqrt(3), 1 / math.sqrt(2)
    by_hand = f64(third, -half, -2 * third, half, third)
    assert torch.allclose(found, by_hand[:, None] * MASK, rtol=1e-12)
    plain = functional.advantages("grpo", rewards=REWARDS, groups=GROUPS, params={"eps": 0.0})
    assert torch.allclose(plain, by_hand, rtol=1e-12)


def test_a_rollout_without_score_takes_part_in_nothing():
    rewards = f64(1, 0, math.nan, 3)
    found = functional.advantages("rloo", rewards=rewards, groups=torch.zeros(4, dtype=torch.int64))
    # leave one out of 1, 0, 3: 1 - 1.5, 0 - 2, 3 - 0.5
    assert found.tolist() == pytest.approx([-0.5, -2.0, 0.0, 2.5])


def test_clipped_loss_and_its_metrics_by_hand():
    # One row, ratios 1.5 and 0.5, advantage 2: min(3, 1.2 * 2) = 2.4 and min(1, 0.8 * 2) = 1.
    logp_old = f64(-1, -1)[None]
    logp = (logp_old + f64(1.5, 0.5).log()).requires_grad_()
    loss, metrics = functional.policy_loss(
        "grpo", logp=logp, logp_old=logp_old, advantages=f64(2), mask=torch.ones(1, 2)
    )
    assert float(loss.detach()) == pytest.approx(-(2.4 + 1.0) / 2)
    assert metrics["clip_ratio/high_mean"] == 0.5
    assert metrics["clip_ratio/low_mean"] == 0.0
    assert metrics["loss/policy"] == pytest.approx(float(loss.detach()))
    loss.backward()
    # The clipped token has none; the other rho * A / 2 = 0.5.
    assert logp.grad.tolist() == [pytest.approx([0.0, -0.5])]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensors_of_16_bits_are_computed_in_float32(dtype):
    rng = torch.Generator().manual_seed(0)
    old, new, logits = (torch.randn(shape, generator=rng) for shape in ((2, 3), (2, 3), (2, 3, 5)))
    given = {"logp_old": (old - 3).to(dtype), "logp": (old - 3 + new / 3).to(dtype)}
    given |= {"advantages": f64(1, -1).to(dtype), "mask": torch.ones(2, 3)}
    wide = {name: tensor.float() for name, tensor in given.items()}
    for recipe in ("gspo", "vespo"):
        losses = [functional.policy_loss(recipe, **each)[0] for each in (given, wide)]
        assert losses[0].dtype is torch.float32
        assert torch.equal(*losses)
        assert torch.equal(*(functional.token_weights(recipe, **each) for each in (given, wide)))
    labels, small = torch.zeros(2, 3, dtype=torch.int64), logits.to(dtype)
    both = {"labels": labels, "advantages": f64(1, -1), "logp_old": torch.full((2, 3), -1.5)}
    losses = [functional.policy_loss("grpo", logits=x, **both)[0] for x in (small, small.float())]
    assert torch.equal(*losses)


def test_denominator_mask_counts_tokens_without_gradient():
    logp = torch.full((2, 2), -1.0, dtype=torch.float64)
    mask = torch.tensor([[True, True], [False, False]])
    options = {"logp": logp, "logp_old": logp, "advantages": f64(1, 1), "mask": mask}
    params = {"aggregation": "token-mean"}
    narrow = functional.token_weights("grpo", **options, params=params)
    assert narrow.tolist() == [[0.5, 0.5], [0, 0]]
    whole = torch.ones(2, 2, dtype=torch.bool)
    wide = functional.token_weights("grpo", **options, denominator_mask=whole, params=params)
    assert wide.tolist() == [[0.25, 0.25], [0, 0]]


def test_selection_follows_the_schedule_and_entropy():
    advantages = f64(1, -1)
    mask = torch.ones(2, 3, dtype=torch.bool)
    params = {"h_low": Linear(0.6, 0.4), "h_high": Linear(0.7, 0.5), "total_steps": 10}

    def kept(entropy, step):
        gradient, denominator = functional.selection(
            "entrocraft",
            advantages=advantages,
            mask=mask,
            entropy=torch.full((2, 3), entropy),
            params={**params, "step": step},
        )
        assert gradient.equal(denominator)
        return gradient.any(1).tolist()

    # Step 5 of 10: the band is 0.5 to 0.6. Above it good rollouts are kept, below it bad ones.
    assert kept(0.65, 5) == [True, False]
    assert kept(0.55, 5) == [True, True]
    assert kept(0.45, 5) == [False, True]
    assert kept(0.45, 10) == [True, True]  # 0.4 to 0.5


def test_a_recipe_without_selection_gives_the_mask_twice():
    gradient, denominator = functional.selection("grpo", advantages=REWARDS, mask=MASK)
    assert gradient.equal(MASK)
    assert denominator.equal(MASK)


def test_schedules_need_a_step():
    with pytest.raises(UserError, match=r"h_low is a schedule; give step and total_steps"):
        functional.selection("entrocraft", advantages=REWARDS, mask=MASK, entropy=MASK.double())


def test_penalty_towards_the_reference_needs_its_column_only_when_there_is_one():
    logp = torch.full((1, 2), -1.0, dtype=torch.float64)
    options = {"logp": logp, "logp_old": logp, "advantages": f64(0), "mask": torch.ones(1, 2)}
    assert float(functional.policy_loss("grpo", **options)[0]) == 0
    with pytest.raises(UserError, match=r"needs logp_ref \(column logp_ref_T\)"):
        functional.policy_loss("grpo", **options, params={"beta": 0.04})
    with pytest.raises(UserError, match=r"policy_loss\('grpo'\) takes no logp_ref"):
        functional.policy_loss("grpo", **options, logp_ref=logp)
    with pytest.raises(UserError, match=r"policy_loss\('grpo'\) takes no rewards"):
        functional.policy_loss("grpo", **options, rewards=f64(1))
    # d = 0.5: k3 = exp(-0.5) + 0.5 - 1 = 0.106531
    loss, _ = functional.policy_loss("grpo", **options, logp_ref=logp - 0.5, params={"beta": 0.04})
    assert float(loss) == pytest.approx(0.04 * 0.106531, abs=1e-7)


def test_gradient_flows_through_current_columns_only():
    rng = torch.Generator().manual_seed(0)

    def leaf():
        return (-torch.rand(2, 3, generator=rng, dtype=torch.float64)).requires_grad_()

    logp, old, entropy = leaf(), leaf(), leaf()
    advantages = f64(1, -1).requires_grad_()
    loss, _ = functional.policy_loss(
        "adaptive_entropy_coef", logp=logp, logp_old=old, entropy=entropy,
        advantages=advantages, mask=torch.ones(2, 3),
    )  # fmt: skip
    loss.backward()
    assert (logp.grad != 0).any()
    assert entropy.grad is not None
    assert old.grad is None
    assert advantages.grad is None


FULL_KL = """
import dataclasses
from strop.method.algorithm import Algorithm
from strop.method.part import Term
from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.method.part import Use
from strop.recipes._base import average
from strop.recipes.grpo import grpo

def mine(*, coef: float = 0.1) -> Algorithm:
    penalty = Term("kl", Use(PenaliseFullKlToReference()), average("token-mean"), coef=coef)
    return dataclasses.replace(grpo(), terms=(penalty,))
"""


def test_a_recipe_of_ones_own_with_whole_distributions(tmp_path):
    (tmp_path / "mine.py").write_text(FULL_KL)
    name = f"{tmp_path}/mine.py:mine"
    policy, reference = f64(0.5, 0.3, 0.2), f64(0.4, 0.4, 0.2)
    logits = policy.log().expand(1, 2, 3).clone()
    logits[0, 1] = math.nan  # outside the mask
    logits.requires_grad_()
    loss, metrics = functional.policy_loss(
        name, logp=torch.zeros(1, 2, dtype=torch.float64), mask=torch.tensor([[1, 0]]),
        logits=logits, logits_ref=reference.log().expand(1, 2, 3) + 4, params={"coef": 0.5},
    )  # fmt: skip
    # KL = 0.5 ln 1.25 + 0.3 ln 0.75 = 0.025267
    assert float(loss.detach()) == pytest.approx(0.5 * 0.025267, abs=1e-6)
    assert metrics["kl"] == pytest.approx(0.025267, abs=1e-6)
    loss.backward()
    # d KL / d z_j = p_j (log p_j - log r_j - KL)
    by_hand = 0.5 * policy * (policy.log() - reference.log() - 0.0252670)
    assert torch.allclose(logits.grad[0, 0], by_hand, atol=1e-6)
    assert (logits.grad[0, 1] == 0).all()
    with pytest.raises(UserError, match=r"needs logits \(column logq_TV\)"):
        functional.policy_loss(name, logp=torch.zeros(1, 2), mask=torch.ones(1, 2))


def test_draws_follow_the_seed():
    rng = torch.Generator().manual_seed(0)
    shape = (4, 30)
    logp = -3 * torch.rand(shape, generator=rng, dtype=torch.float64)
    options = {
        "logp": logp, "logp_old": logp, "mask": torch.ones(shape),
        "advantages": 3 * torch.randn(shape, generator=rng, dtype=torch.float64),
        "params": {"clip_cov_ratio": 0.05},
    }  # fmt: skip

    def dropped(seed):
        return functional.token_weights("clip_cov", **options, seed=seed) == 0

    assert int(dropped(0).sum()) == 6  # 5% of 120
    assert dropped(0).equal(dropped(0))
    assert not dropped(0).equal(dropped(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": f64(1)}, r"rewards must be \[5\] to fit the mask \[5, 3\]; it is \[1\]"),
        ({"params": {"epz": 1}}, "no parameter epz, did you mean eps?"),
        ({"params": {"std": "both"}}, "divide_by_group_std.std must be one of unbiased, biased"),
        ({"reward": REWARDS}, r"advantages\('grpo'\) takes no reward, did you mean rewards"),
        ({"mask": MASK[0]}, r"mask must be a tensor \[B, T\]"),
    ],
)
def test_mistakes_are_named(changes, message):
    options = {"rewards": REWARDS, "groups": GROUPS, "mask": MASK, **changes}
    with pytest.raises(UserError, match=message):
        functional.advantages("grpo", **options)


def test_unknown_recipe_call_and_shape_of_denominator():
    with pytest.raises(UserError, match="no recipe 'grop', did you mean"):
        functional.advantages("grop", rewards=REWARDS, groups=GROUPS)
    with pytest.raises(UserError, match="no call 'loss'; there are advantages, selection"):
        functional.inputs("grpo", "loss")
    logp = torch.zeros(5, 3)
    with pytest.raises(UserError, match=r"denominator_mask must be \[5, 3\]"):
        functional.policy_loss(
            "grpo", logp=logp, logp_old=logp, advantages=logp, mask=MASK, denominator_mask=MASK[:2]
        )


def test_inputs_follow_the_parameters():
    plain = functional.inputs("grpo", "policy_loss")
    assert plain["logp"]
    assert plain["logp_old"]
    assert "logp_ref" not in plain
    assert functional.inputs("grpo", "policy_loss", {"beta": 0.1})["logp_ref"]
    assert functional.inputs("clip_cov", "policy_loss")["dropped_tokens"] is False


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 14 / 8), ("token-sum", 14), ("seq-mean-token-mean", 1.5),
        ("seq-mean-token-sum", 7), ("seq-mean-token-sum-norm", 7 / 6),
    ],
)  # fmt: skip
def test_aggregations_of_the_method_card(aggregation, expected):
    # Sequences (1, 1) and (2, 2, 2, 2, 2, 2).
    losses = f64(1, 2)[:, None].expand(2, 6)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    assert float(functional.loss_aggregation(losses, mask, aggregation)) == pytest.approx(expected)


def test_constant_length_and_unknown_aggregation():
    losses, mask = torch.ones(2, 6, dtype=torch.float64), torch.ones(2, 6)
    norm = functional.loss_aggregation(losses, mask, "seq-mean-token-sum-norm", L_max=10)
    assert float(norm) == pytest.approx(0.6)
    with pytest.raises(UserError, match="no aggregation 'token-men', did you mean token-mean"):
        functional.loss_aggregation(losses, mask, "token-men")
    with pytest.raises(UserError, match="L_max=10: token-mean has no constant"):
        functional.loss_aggregation(losses, mask, "token-mean", L_max=10)
    with pytest.raises(UserError, match="L_max is 0: give a number above 0"):
        functional.loss_aggregation(losses, mask, "token-sum-norm", L_max=0)


def test_kl_estimators_of_the_method_card():
    # d = 0.5 and -0.5: k2 0.125 both, k3 0.106531 and 0.148721
    logp = f64(-1, -1)[None].requires_grad_()
    found = functional.kl_estimators(
        logp=logp, logp_ref=f64(-1.5, -0.5)[None], mask=torch.ones(1, 2)
    )
    expected = {"k1": 0.0, "abs": 0.5, "k2": 0.125, "k3": (0.106531 + 0.148721) / 2}
    assert {k: float(v.detach()) for k, v in found.items()} == pytest.approx(expected, abs=1e-6)
    found["k2"].backward()
    assert logp.grad.tolist() == [pytest.approx([0.25, -0.25])]


def test_words_of_a_method_for_the_same_tensor():
    probs = torch.tensor([[0.99, 0.5, 0.95, 0.3, 0.99, 0.7, 0.99, 0.2]])
    mask, values = torch.ones(1, 8), torch.rand(1, 9, generator=torch.Generator().manual_seed(0))
    own = functional.advantages(
        "spo_chain", probs=probs, mask=mask, scores=torch.tensor([1.0]),
        values_after_position_minus1_first=values, params={"interval": 2},
    )  # fmt: skip
    usual = functional.advantages(
        "spo_chain", logp_beh=probs.log(), mask=mask, rewards=torch.tensor([1.0]),
        prefix_value=values[:, :8], params={"interval": 2},
    )  # fmt: skip
    assert own.abs().sum() > 1
    torch.testing.assert_close(own, usual)
    rewards, groups = torch.tensor([3.0, 1.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64)
    plain = functional.advantages(
        "grpo_passk", rewards=rewards, prompts=groups, params={"divide_by_std": False}
    )
    assert plain.tolist() == [2.0, 0.0, 0.0, 0.0]


def test_says_what_is_there_twice_or_missing():
    rewards, groups = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(UserError, match="prompts is groups"):
        functional.advantages("grpo", rewards=rewards, groups=groups, prompts=groups)
    with pytest.raises(UserError, match="needs groups"):
        functional.advantages("grpo", rewards=rewards, mask=torch.ones(2, 3))
    with pytest.raises(UserError, match="give mask"):
        functional.advantages("reinforce_plus_plus", rewards=rewards)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("loop", [0, 0, 1, 1]), ("d3s", [0, 0, 1, 1]), ("aepo_arbitrary", [1, 0, 0, 1])],
)
def test_a_selection_is_by_the_advantages_given_and_not_by_rewards(name, kept):
    """Large rewards stand where advantages are small; only one rollout of stage 1 is good."""
    given = {
        "advantages": torch.tensor([0.005, 0.0, 0.5, -0.5]).double(), "mask": torch.ones(4, 1),
        "rewards": torch.tensor([1.0, 0.5, 0.0, 0.0]).double(), "groups": torch.zeros(4).long(),
    }  # fmt: skip
    params = {"d3s": {"rollout_share": 0.5, "token_share": 1.0}, "aepo_arbitrary": {"s": 2}}
    more = {
        "d3s": {"entropy": torch.ones(4, 1)},
        "aepo_arbitrary": {"stage": torch.tensor([1, 1, 0, 0]), "rollout_uid": torch.arange(4)},
    }
    found, _ = functional.selection(
        name, params=params.get(name, {}), **given, **more.get(name, {})
    )
    assert found[:, 0].int().tolist() == kept
