"""Padded calls besides advantages, selections and losses, and other names in all of them."""

import math

import numpy as np
import pytest
import torch
from builders import f64
from torch import Tensor

from strop import functional as F
from strop.support.errors import UserError

ONE_GROUP = torch.zeros(4, dtype=torch.int64)


def close(found, *expected):
    torch.testing.assert_close(found, f64(*expected), atol=6e-5, rtol=0)


def test_returns_of_tokens_and_of_turns():
    given = {"token_rewards": f64([0, 0, 1]), "values": f64([0.2, 0.4, 0.6])}
    found = F.returns("gae", **given, mask=torch.ones(1, 3), params={"lam": 0.95})
    close(found, [0.951, 0.98, 1.0])
    rewards = f64([0, 3], [1, 1], [0, 0])
    close(F.returns("trloo", turn_rewards=rewards, groups=ONE_GROUP[:3]), [3, 3], [2, 1], [0, 0])
    turns = {"turn_rewards": f64([0, 1], [0, 0]), "anchors": torch.tensor([[0, 1], [0, 2]])}
    close(F.returns("gigpo", groups=ONE_GROUP[:2], **turns), [0.95, 1], [0, 0])
    # the same turns as rows, in another order
    rows = {"trajectories": [1, 0, 0, 1], "turn_index": [0, 1, 0, 1], "groups": ONE_GROUP}
    anchors = torch.tensor([0, 1, 0, 2])
    close(F.returns("gigpo", turn_rewards=f64(0, 1, 0, 0), anchors=anchors, **rows), 0, 1, 0.95, 0)
    with pytest.raises(UserError, match="no returns; it has none"):
        F.returns("grpo", rewards=f64(1, 0), groups=ONE_GROUP[:2])


def test_returns_need_what_their_equation_needs():
    done, next_value = torch.tensor([[False, True]]), f64([0.5, 0.7])
    mask = torch.ones(1, 2)
    turns = {"turn_ids": torch.tensor([[0, 1]]), "turn_rewards": f64([0, 1])}
    found = F.returns(
        "archer", **turns, mask=mask, done=done, target_v1_next=next_value,
        which="return_value_after_T",
    )  # fmt: skip
    close(found, [0.475, 1.0])
    values = {"q1": f64([0.6, 0.6]), "q2": f64([0.5, 0.5]), "v1": f64([0.4, 0.4])}
    advantages = F.advantages("archer", **turns, mask=mask, **values, v2=f64([0.45, 0.45]))
    close(advantages, [0.1, 0.1])


def test_rewards_follow_the_parts_after_the_reward_functions():
    close(F.rewards("entropic", rewards=f64(1, 0, float("nan"))).nan_to_num(7), 1, -1, 7)
    mask = torch.arange(10) < torch.tensor([[4], [9], [10]])
    params = {"overlong_buffer": 2, "length": 10}
    close(F.rewards("dapo", rewards=f64(1, 1, 0), mask=mask, params=params), 1, 0.5, -1)
    pairs = {"stage": [0, 1] * 2, "conversation": [3, 3, 9, 9]}
    close(F.rewards("score_two_attempt", rewards=f64(0, 1, 1, 0), **pairs), 0, 11, 1, -10)
    close(F.rewards("cory", rewards=f64(0.2, 0.9, 0.5, 0), **pairs), 1.1, 1.1, 0.5, 0.5)
    # four failures, cut off: peaks 2, 1.5, 1.8, 1 over .6, .8, .9, .7, so that S = 3, 0, 0, 0
    peaks, rests = [2.0, 1.5, 1.8, 1.0], [0.6, 0.8, 0.9, 0.7]
    entropies = f64(*([peak] + [rest] * 9 for peak, rest in zip(peaks, rests, strict=True)))
    found = F.rewards("r3_replay_reflection_ranking", rewards=torch.zeros(4).double(),
                      groups=ONE_GROUP, mask=torch.ones(4, 10), truncated=[True] * 4,
                      entropy_behavior=entropies, params={"R_max": 0.5, "p": 0.1})  # fmt: skip
    close(found, 0.5, *[0.5 / 3] * 3)
    # what a run's reward functions would have said
    said = {"correct": [1, 1], "speedup": f64(1.8, 7), "profiled": f64(0.4, 0.5), "decoy": [0, 0]}
    close(F.rewards("profiling_reward", rewards=f64(1, 1), **said), 1.6, 2.25)
    for name, asked in (
        ("profiling_reward", "note_profiles needs a run's grading and log"),
        ("fapo", "penalise_flawed_answers needs a run's grading and log"),
        ("ettrl_ear", "reward_majority_answer needs a run's grading and texts"),
    ):
        given = {"rewards": f64(1, 0), "groups": ONE_GROUP[:2]}
        with pytest.raises(UserError, match=asked):
            F.rewards(name, **given, **({} if name == "ettrl_ear" else {"rollout_uid": [3, 4]}))


def test_a_table_of_scores_plays_the_tournament():
    wins = f64(9, 8, 7, 6)[:, None].expand(4, 4).clone()  # row 0 beats all, row 3 none
    close(F.rewards("arena_rl", pair_scores=wins).double(), 1, 2 / 3, 1 / 3, 0)
    found = F.advantages("arena_rl", pair_scores=wins)
    close(found.double(), 1.1619, 0.3873, -0.3873, -1.1619)
    two = torch.block_diag(wins, wins.flip(0, 1))
    groups = ONE_GROUP.new_tensor([5] * 4 + [1] * 4)
    found = F.rewards("arena_rl", pair_scores=two, groups=groups, params={"scheme": "round_robin"})
    close(found.double(), 1, 2 / 3, 1 / 3, 0, 0, 1 / 3, 2 / 3, 1)
    wins[3] = wins[:, 3] = float("nan")
    assert F.rewards("arena_rl", pair_scores=wins).isnan().tolist() == [False] * 3 + [True]
    assert F.inputs("arena_rl", "rewards")["pair_scores"]
    for given, message in (
        ({"pair_scores": wins[:2]}, r"must be \[B, B\]"),
        ({"pair_scores": wins, "groups": ONE_GROUP[:2]}, "to fit|is of 4 answers"),
        ({"rewards": f64(1, 0), "groups": ONE_GROUP[:2]}, "needs pair_scores"),
        ({"groups": ONE_GROUP}, "needs pair_scores"),
    ):
        with pytest.raises(UserError, match=message):
            F.rewards("arena_rl", **given)
    with pytest.raises(UserError, match="no tournament is played"):
        F.rewards("grpo", pair_scores=wins)


def test_the_coefficient_that_entropy_moves():
    """The card's example: H .3, .19, .18, .25, .1; applied 0, 0, .01, .015, 0."""
    params, entropies = {"c0": 0.01}, [0.3, 0.19, 0.18, 0.25, 0.1]
    state, coefs, applied = None, [], []
    for entropy in entropies:
        metrics = {"entropy": entropy}
        state = F.next_state("adaptive_entropy_coef", state=state, metrics=metrics, params=params)
        coefs.append(state["control.hold_entropy_with_coefficient"]["coef"])
        applied.append(state["knobs"]["terms.entropy.coef"])
    close(f64(*coefs), 0.005, 0.01, 0.015, 0.01, 0.015)
    close(f64(*applied), 0, 0.01, 0.015, 0, 0.015)
    given = {"entropy": f64([1, 3]), "mask": torch.ones(1, 2), "params": params}
    for steps, expected in ((2, 0.01), (3, 0.015), (4, 0)):
        loss, _ = F.policy_loss("adaptive_entropy_coef", step_entropy=entropies[:steps], **given)
        assert float(loss) == pytest.approx(-2 * expected)
    named = {"entropy_coef": 0.01, "entropy_target": 0.2, "entropy_coef_delta": 0.005}
    assert F.next_state("adaptive_entropy_coef", metrics=metrics, params=named)["knobs"] == {
        "terms.entropy.coef": 0.015
    }
    with pytest.raises(UserError, match="needs the metric entropy"):
        F.next_state("adaptive_entropy_coef", metrics={"entropie": 0.1})
    of_run = {**named, "length": 10, "step": 1.0}
    assert F.next_state("adaptive_entropy_coef", metrics=metrics, params=of_run)["knobs"]
    for step, message in (
        ("a", "step must be a tensor"),
        (math.nan, "whole"),
        ([1, 2], "one number"),
    ):
        with pytest.raises(UserError, match=message):
            F.next_state("adaptive_entropy_coef", metrics=metrics, params={"step": step})


def test_the_integral_over_a_run_of_entropies():
    """The card's example: alpha .3, .303, -.194 at entropies .8, .8, .3."""
    rewards = f64(1, 1, 1, -1)
    given = {"rewards": rewards, "groups": ONE_GROUP, "mask": torch.ones(4, 1)}
    params = {"target_entropy": 0.5, "P": 1.0, "I": 0.01}
    for entropies, tilt in (([0.8], 0.3), ([0.8, 0.8], 0.303), ([0.8, 0.8, 0.3], -0.194)):
        found = F.advantages(
            "entropic", **given, batch_entropy_sequence=entropies, initial_integral=0.0,
            params=params,
        )  # fmt: skip
        close(found[:, 0], *[1 + tilt] * 3, -(1 - tilt))
    state = F.next_state("entropic", **given, batch_entropy=0.8, params=params)
    state = F.next_state("entropic", **given, batch_entropy=0.8, params=params, state=state)
    (integral,) = state["knobs"].values()
    assert integral == pytest.approx(0.006)


def test_a_tracked_success_is_the_next_baseline():
    """The card's tracker: v = 1, then a failure at rho .9175: 7.34 and 1, V = .8801."""
    given = {"groups": torch.tensor([7, 3]), "mask": torch.ones(2, 1), "entropy": f64([0], [0])}
    first = f64(1, 0.5)
    state = F.next_state("mssr", **given, rewards=f64(0, 1), first_success=first)
    tracked = state["advantage.subtract_tracked_success"]
    assert tracked["uid"].tolist() == [3, 7]
    right, wrong = float(tracked["right"][1]), float(tracked["wrong"][1])
    assert (right, wrong) == pytest.approx((7.34, 1.0))
    del given["entropy"]
    again = F.advantages("mssr", **given, rewards=f64(1, 1), params={"alpha": 0.0}, state=state)
    value = f64(
        right / (right + wrong),
        float(tracked["right"][0] / (tracked["right"] + tracked["wrong"])[0]),
    )
    raw = 1 - value
    centred = (raw - raw.mean()) / raw.var(unbiased=False).clamp(min=1e-6).sqrt()
    close(again[:, 0], *centred.tolist())
    assert not again.equal(F.advantages("mssr", **given, rewards=f64(1, 1), params={"alpha": 0.0}))


def test_tracked_quantiles_and_successes_of_prompts():
    bundles, prompts = torch.zeros(8).long(), torch.arange(8) // 4
    scores = f64(1, 1, 0, 1, 0, 1, 0, 0)  # bundle scores 1, 2, 0, 1
    given = {"rewards": scores, "prompts": prompts, "bundles": bundles, "mask": torch.ones(8, 1)}
    state = F.next_state("riskpo", **given, params={"quantiles": "tracked"})
    quantiles = state["advantage.weigh_lower_tail"]
    assert quantiles == pytest.approx({"low": 0.595, "high": 1.405})
    state = F.next_state("vade", rewards=f64(1, 0, 1), groups=[9, 9, 4], mask=torch.ones(3, 1))
    tracked = state["sampling.track_success"]
    assert tracked["uid"].tolist() == [4, 9]
    assert [tracked[name].tolist() for name in ("right", "wrong")] == [[1, 1], [0, 1]]
    with pytest.raises(UserError, match="needs rewards: subtract_tracked_success"):
        F.next_state("mssr", metrics={"entropy": 1.0})
    with pytest.raises(UserError, match="what next_state gave"):
        F.advantages("grpo", rewards=scores, groups=prompts, state=3)


# log w = (0, .5, 1, -.7) between old and behaviour
DRAWN = {
    "logp": f64([-1, -1, -1, -1]), "logp_old": f64([-1, -1, -1, -1]),
    "logp_beh": f64([-1, -1.5, -2, -0.3]), "mask": torch.ones(1, 4),
}  # fmt: skip


def test_weights_and_masks_of_a_correction():
    given = {**DRAWN, "advantages": f64(1)}
    found = F.loss_parts("rollout_correction", **given)
    close(found["weights"], [1, 1.648721, 2, 0.496585])
    params = {"outside": "mask", "low": 0.5, "reject": "token_k1"}
    found = F.loss_parts("rollout_correction", **given, params=params)
    close(found["weights"], [1, 1.648721, 0, 0])
    assert found["kept"].tolist() == [[True, True, False, False]]
    assert found["counted"].all()
    close(found["share"], [0.25] * 4)
    # a ratio of e^2 on a bad answer, bounded at 3
    moved = {**given, "logp": given["logp"] + 2, "advantages": f64(-1)}
    for name in ("dual_clip_c", "delta", "clip_ratio_c"):
        found = F.loss_parts("ppo_clip", **{k: v for k, v in moved.items() if k != "logp_beh"},
                             params={name: 3.0})  # fmt: skip
        close(found["objective"], [-3] * 4)
    plain = {k: v for k, v in moved.items() if k != "logp_beh"}
    found = F.loss_parts("grpo", **plain, params={"loss.dual_clip_c": 3.0, "clip_high": 0.3})
    close(found["objective"], [-3] * 4)
    with pytest.raises(UserError, match=r"is here loss\.dual_clip_c"):
        F.loss_parts("grpo", **plain, params={"delta": 3.0})
    verls = {"rollout_is": "token", "rollout_is_threshold": 2.0, "dual_clip_c": 3.0}
    loss, metrics = F.policy_loss("rollout_correction", **moved, params=verls)
    assert metrics["correction/mean"] == pytest.approx((1 + 1.648721 + 2 + 0.496585) / 4)
    assert float(loss) == pytest.approx(3 * (1 + 1.648721 + 2 + 0.496585) / 4, abs=1e-5)


def test_what_a_loss_left_out():
    given = {"logp": f64([-1.0], [-3.0], [-3.0]), "logp_old": f64([-1.0], [-1.0], [-1.0]),
             "advantages": f64(-1, -1, 1), "mask": torch.ones(3, 1)}  # fmt: skip
    found = F.loss_parts("opsm", **given, params={"off_policy_mask_threshold": 0.5})
    assert found["opsm/dropped_mean"].flatten().tolist() == [0, 1, 0]
    entropy = f64([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0])
    tokens = {"logp": entropy, "logp_old": entropy, "mask": torch.ones(1, 10)}
    for name in ("forking_token_mask", "top_entropy_quantile"):
        found = F.loss_parts(name, **tokens, advantages=f64(1), entropy=entropy)
        assert found["kept"].nonzero()[:, 1].tolist() == [8, 9]
        assert int(found["counted"].sum()) == (2 if name == "forking_token_mask" else 10)
    with pytest.raises(UserError, match="no term 'kl'; it has policy"):
        F.loss_parts("grpo", **given, term="kl")


def test_what_controls_carry_from_step_to_step():
    state = None
    for entropy in (0.3, 0.7):
        state = F.next_state("epo", metrics={"entropy": entropy}, state=state)
    assert state["knobs"] == {"terms.entropy.objective.past": pytest.approx(0.5)}
    zero = torch.zeros(1, 3).double()
    given = {"logp": zero, "logp_old": zero, "advantages": zero, "mask": torch.ones(1, 3),
             "entropy": f64([0.1, 0.5, 1.0]), "turn_ids": torch.zeros(1, 3).long()}  # fmt: skip
    params = {"lam": 1.0, "kappa_l": 0.5, "kappa_r": 1.5, "alpha": 1.0, "step": 1,
              "total_steps": 120}  # fmt: skip
    loss, _ = F.policy_loss("epo", **given, params=params, state=state)
    assert float(loss) == pytest.approx(-(1.6 - 2 * (0.15 + 0.25)) / 3)
    # siren's anchor is its own entropy at the first step
    state = F.next_state("siren", metrics={"siren/entropy": 0.4})
    state = F.next_state("siren", metrics={"siren/entropy": 0.9}, state=state)
    assert state["knobs"] == {"terms.entropy.objective.anchor": 0.4}
    found = {"nucleus_entropy_0.8": f64([0, 0.1, 0.2, 0.3, 1]), "mask": torch.ones(1, 5)}
    loss, metrics = F.policy_loss("siren", **found, state=state)
    assert metrics["siren/entropy"] == pytest.approx(1.0)  # the card's l is .44
    assert float(loss) == pytest.approx(0.005 * 0.6**2)
    # gtpo's filter is off where the first policy's entropy was above ln 2
    unsure = {"advantages": f64(1), "mask": torch.ones(1, 1), "entropy": f64([0.9])}
    for first, kept in ((0.6, False), (0.8, True)):
        state = F.next_state("gtpo_conflict", metrics={"entropy": first})
        assert bool(F.selection("gtpo_conflict", **unsure, state=state)[0]) == kept


def test_nuclei_of_the_cards():
    logits = f64(0.5, 0.25, 0.15, 0.06, 0.04).log()[None, None]
    close(F.nucleus_entropy(logits), [0.9810])
    close(F.nucleus_entropy(logits, variant="code"), [0.6365])
    close(F.nucleus_entropy(logits, top_p=1.0), [1.2753])
    logits.requires_grad_()
    (slope,) = torch.autograd.grad(F.nucleus_entropy(logits).sum(), logits)
    assert slope[0, 0, :3].abs().min() > 0
    logits = f64(0.70, 0.20, 0.05, 0.04, 0.008, 0.002).log().expand(1, 6, 6) + 3
    found = F.plausible_logp(logits, torch.arange(6)[None])
    close(found.exp(), [0.7071, 0.2020, 0.0505, 0.0404, 0, 0])
    assert found[0, 4:].tolist() == [-1e4, -1e4]
    nothing_cut = F.plausible_logp(logits, torch.arange(6)[None], kappa=-0.0)
    torch.testing.assert_close(nothing_cut, logits[:1].log_softmax(-1)[:, 0])


def test_edges_of_a_tree():
    first, leaves = F.tree_edges("spo_tree", tree=[[1, 0], [0, 0]])
    close(first, 0.25, -0.25)
    close(leaves, 0.5, -0.5, 0, 0)
    first, leaves = F.tree_edges("spo_tree", tree=[[1, 0], [0, 0]], params={"mode": "grpo"})
    close(first, 1, -1)
    close(leaves, 1, -1, 0, 0)
    alone, below = F.tree_edges("spo_tree", tree=[[1, 0], 1])  # the second child ended early
    close(alone, -0.25, 0.25)
    close(below, 0.5, -0.5)
    (only,) = F.tree_edges("spo_tree", tree=[1, 0, float("nan")])
    close(only, 0.5, -0.5, 0)
    for tree in ([[]], "tree", [None], [10**400, 1]):
        with pytest.raises(UserError, match="tree"):
            F.tree_edges("spo_tree", tree=tree)
    with pytest.raises(UserError, match="credits no edges of a tree"):
        F.tree_edges("grpo", tree=[1, 0])


def test_names_of_the_vocabulary():
    # empg: turns as rows, from advantages of trajectories
    found = F.advantages(
        "empg", advantages_seq=f64(1, 1, -1, -1), entropy=f64([0.2], [0.8], [0.5], [1]),
        mask=torch.ones(4, 1), trajectories=[0, 0, 1, 1], turns=[0, 1, 0, 1],
    )  # fmt: skip
    close(found[:, 0], 1.4437, 0.5615, -1.2370, -0.7683)
    entropy, mask = f64([1, 3], [2, 9]), torch.tensor([[1, 1], [1, 0]])
    loss, _ = F.policy_loss("entropy_bonus", entropy=entropy, mask=mask, params={"coef": 1.0})
    assert float(loss) == pytest.approx(-2)
    loss, _ = F.policy_loss(
        "entropy_bonus", entropy=entropy, mask=mask, kept=[[0, 1], [0, 0]], params={"coef": 1.0}
    )
    assert float(loss) == pytest.approx(-3)
    # entropy_sft: CE .1, 2, .5, 3 and H .05, 2.5, .2, 1 are not those of one softmax; these are
    logits = f64([[2, 0, 0], [0, 1, 0], [0, 0, 3], [1, 1, 0]])
    logq = logits.log_softmax(-1)
    cross, spread = -logq[0, :3, 0], -(logq.exp() * logq).sum(-1)[0, :3]
    kept = (cross - spread).argsort()[1:]
    given = {"logits": logits, "labels": [[0, 0, 0, -100]], "params": {"q": 0.67, "c": 1.0}}
    loss, _ = F.policy_loss("entropy_sft", **given)
    assert float(loss) == pytest.approx(float(cross[kept].mean()))
    assert int((F.token_weights("entropy_sft", **given) > 0).sum()) == 2
    given["params"] = {"q": 0.67, "c": 1.0, "num_items_in_batch": 12}
    whole, _ = F.policy_loss("entropy_sft", **given)  # int(.67 * 12) = 8 tokens
    assert float(whole) == pytest.approx(float(loss) * 2 / 8)
    # canon: the cosine of its schedule
    half = {"rewards": f64(1, 0, 1, 1), "groups": ONE_GROUP, "lengths": [1, 2, 3, 4]}
    turn = {"schedule": "cosine_first_intra", "total": 6, "warmup": 2, "cycles": 2, "max": 0.6,
            "min": 0.0, "metric": "length"}  # fmt: skip
    for step, intra in ((1, 0.3), (2, 0.6), (3, 0.6), (4, 0.3), (5, 0.6)):
        found = F.advantages("canon", **half, params={**turn, "step": step, "total_steps": 6})
        inter = f64(0, -1, 0.5, 0.5)
        close(found, *((1 - intra) * inter + intra * f64(0.5, -0.5, 0, 0)).tolist())


def test_parts_of_a_loss_by_themselves():
    covariance = {"logp": f64([-0.1, -2, -0.5, -1]), "advantages": f64([1, 1, 1, -1]),
                  "entropy": f64([1, 1, 1, 1]), "mask": torch.ones(1, 4)}  # fmt: skip
    params = {"cov_alpha": 10.0, "aggregation": "token-sum", "length": 8192}
    loss, _ = F.policy_loss("tea_rl", **covariance, params=params)
    assert float(loss) == pytest.approx(-10, abs=1e-6)
    found = {"logp": f64([0.25, 0.5, 1, 2]).log(), "logp_ref": f64([0, 0, 0, 0])}
    for divergence, expected in (("forward", 1.1363), ("js", 0.4957), ("alpha", 0.9667)):
        params = {"divergence": divergence, "eta": 1.0, "aggregation": "token-sum"}
        loss, _ = F.policy_loss("dph_rl", **found, mask=torch.ones(1, 4), params=params)
        assert float(loss) == pytest.approx(expected, abs=1e-3)
    with pytest.raises(UserError, match="needs logp_old"):
        F.policy_loss("entropy_bonus", **covariance)


POLICY = {"logp": f64([-1.0]), "logp_old": f64([-2.0]), "advantages": f64(1)}


@pytest.mark.parametrize(
    ("params", "width"),
    [
        ({"epsilon": 0.1}, 0.1), ({"epsilon": 0.1, "epsilon_high": 0.3}, 0.3),
        ({"clip_ratio": 0.4}, 0.4), ({"clip_ratio_low": 0.1, "clip_ratio_high": 0.25}, 0.25),
        ({"epsilon": 0.1, "clip_low": 0.1}, 0.1), ({"epsilon_high": 0.3, "clip_high": 0.3}, 0.3),
    ],
)  # fmt: skip
def test_clips_as_others_call_them(params, width):
    loss, _ = F.policy_loss("grpo", **POLICY, mask=torch.ones(1, 1), params=params)
    assert float(loss) == pytest.approx(-1 - width)


def test_other_parameters_as_others_call_them():
    mask, rewards = torch.tensor([[1, 1], [1, 0]]), f64(1, 0)
    given = {"logp": torch.zeros(2, 2), "logp_old": torch.zeros(2, 2), "advantages": f64(1, 4)}
    for name, word, expected in (
        ("loss_type", "grpo", 2.5), ("loss_type", "dapo", 2.0), ("loss_agg_mode", "token-sum", 6),
        ("loss_type", "dr_grpo", 1.5),
    ):  # fmt: skip
        loss, _ = F.policy_loss("grpo", **given, mask=mask, params={name: word})
        assert float(loss) == pytest.approx(-expected)
    for params in ({"scale_rewards": "none"}, {"norm_adv_by_std_in_grpo": False}):
        close(F.advantages("grpo", rewards=rewards, groups=ONE_GROUP[:2], params=params), 0.5, -0.5)
    e = float(f64(1).exp())
    loss, _ = F.policy_loss("cispo", **POLICY, mask=torch.ones(1, 1), params={"epsilon_high": 2.0})
    assert float(loss) == pytest.approx(2.0)  # TRL's is the largest weight itself, here below e
    assert e > 2


@pytest.mark.parametrize(
    ("recipe", "params", "message"),
    [
        ("grpo", {"epsilon": 0.1, "clip_low": 0.2}, "epsilon and clip_low are the same .* differ"),
        ("grpo", {"clip_ratio_high": 0.1, "epsilon_high": 0.2}, "are the same parameter"),
        ("grpo", {"loss_type": "sapo"}, "counterpart in recipe grpo, it is the recipe sapo_soft:"),
        ("grpo", {"scale_rewards": 3}, "has no counterpart"),
        ("cispo", {"epsilon": 0.1}, "no parameter epsilon"),
        ("riskpo", {"kl_loss_coef": 0.9}, "beta of recipe riskpo is no kl_loss_coef"),
        ("entropic", {"target_entropy": 0.3, "target": 0.5}, "are the same parameter"),
    ],
)
def test_names_that_differ_or_fit_nothing(recipe, params, message):
    given = POLICY if recipe != "riskpo" else {**POLICY, "groups": [0]}
    with pytest.raises(UserError, match=message):
        F.policy_loss(recipe, **given, mask=torch.ones(1, 1), params=params)


def test_results_are_tensors_where_their_inputs_were():
    found = F.returns("trloo", turn_rewards=[[0.0, 3.0]], groups=[0])
    assert isinstance(found, Tensor)
    assert found.shape == (1, 2)


@pytest.mark.parametrize("name", ["logp_old", "logp_prox"])
def test_an_old_log_probability_that_is_nan_is_refused_inside_the_mask(name):
    mask = torch.tensor([[1, 1], [1, 0]])
    given = {"logp": f64([-1, -1], [-1, -1]), "advantages": f64(1, -1), "mask": mask}
    old = f64([-1, -1], [-1, float("nan")])
    F.policy_loss("grpo", **given, **{name: old})
    old[0, 1] = float("nan")
    with pytest.raises(UserError, match=f"{name} is NaN at row 0, token 1, inside the mask"):
        F.policy_loss("grpo", **given, **{name: old})


def test_a_selection_without_advantages_or_mask_names_them():
    with pytest.raises(UserError, match=r"selection\('entrocraft'\) needs advantages"):
        F.selection("entrocraft", mask=torch.ones(2, 1))
    with pytest.raises(UserError, match=r"selection\('grpo'\) needs mask"):
        F.selection("grpo", advantages=f64(1, -1))


@pytest.mark.parametrize("odd", [0.5, 2.0, -1.0, math.nan])
def test_a_mask_holds_0_and_1_alone(odd):
    given = {"rewards": torch.tensor([1.0, 0.0]), "groups": [0, 0]}
    whole = F.advantages("grpo", mask=torch.tensor([[1.0, 1.0], [1.0, 0.0]]), **given)
    assert torch.equal(whole, F.advantages("grpo", mask=torch.tensor([[1, 1], [1, 0]]), **given))
    with pytest.raises(UserError, match="mask must hold 0 and 1 alone"):
        F.advantages("grpo", mask=torch.tensor([[1.0, odd], [1.0, 0.0]]), **given)
    pair = {f"logp_{side}": f64([-1]) for side in ("chosen", "rejected")}
    with pytest.raises(UserError, match="mask_rejected must hold 0 and 1 alone"):
        F.policy_loss("simpo", **pair, mask_chosen=[[1.0]], mask_rejected=[[odd]])


def test_tokens_that_are_ruled_out_add_no_entropy():
    """Of a vocabulary padded with -inf, as of the one without padding; it was NaN."""
    known = f64([[2, 0, 1], [0, 1, 0]]).requires_grad_()
    padded = torch.nn.functional.pad(known, (0, 2), value=-math.inf)
    found = []
    for logits in (known, padded):
        given = {"logits": logits, "labels": [[0, 1]], "advantages": f64(1)}
        loss, _ = F.policy_loss("adaptive_entropy_coef", **given)
        found.append((loss, *torch.autograd.grad(loss, known)))
    torch.testing.assert_close(found[1], found[0])


def test_a_token_without_a_label_is_in_no_mask():
    given = {"logits": torch.zeros(1, 3, 2), "labels": [[0, 1, -100]]}
    loss, _ = F.policy_loss("sft", **given, mask=[[1, 0, 0]])  # fewer tokens than have labels
    assert float(loss) == pytest.approx(math.log(2))
    with pytest.raises(UserError, match="mask has tokens whose label is -100"):
        F.policy_loss("sft", **given, mask=[[1, 0, 1]])


@pytest.mark.parametrize("odd", [[1, 0], [True, False], [1.0, 2.0]])
def test_preferred_answers_need_rejected_ones(odd):
    given = {"logp": f64([-1], [-2]), "mask": [[1], [1]], "groups": [0, 0]}
    loss, _ = F.policy_loss("simpo", **given, preferred=[1, -1])
    assert float(loss) > 0
    with pytest.raises(UserError, match="preferred marks preferred answers and no rejected ones"):
        F.policy_loss("simpo", **given, preferred=odd)


def test_tensors_in_the_shapes_of_others():
    given = {"reward_components": f64([0, 1], [1, 0], [2, 2]), "groups": [0, 0, 0]}
    weights = f64(1, -0.5)
    each = F.advantages("gdpo", **given, reward_weights=weights.expand(3, 2))
    assert torch.equal(F.advantages("gdpo", **given, reward_weights=weights), each)
    logp = f64([-1, -3], [-1, -2])
    policy = {"logp": logp, "logp_old": logp - 1, "mask": torch.ones(2, 2)}
    losses = [
        F.policy_loss("grpo", **policy, advantages=a)[0] for a in (f64(1, -2), f64([1], [-2]))
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"old_log_prob": POLICY["logp_old"]}, "takes no old_log_prob: it is logp_old here"),
        ({"completion_mask": torch.ones(1, 1)}, "takes no completion_mask: it is mask here"),
    ],
)
def test_tensors_by_the_names_of_others_are_named(given, message):
    with pytest.raises(UserError, match=message):
        F.policy_loss("grpo", logp=POLICY["logp"], advantages=f64(1), **given)


def test_a_recipe_line_has_its_parameters():
    given = {"logp": f64([-1, -3]), "logp_old": f64([-2, -2]), "mask": [[1, 1]]}
    given["advantages"] = f64(1)
    line = "grpo(clip_high=0.5, clip_low=linear(0.1, 0.2))"
    place = {"step": 1, "total_steps": 2}
    loss, _ = F.policy_loss(line, **given, params=place)
    assert float(loss) == pytest.approx(-(1.5 + math.exp(-1)) / 2)
    apart = {"clip_high": 0.5, "clip_low": "linear(0.1, 0.2)", **place}
    assert F.policy_loss("grpo", **given, params=apart)[0] == loss
    assert "logp_ref" in F.inputs("grpo(beta=0.1)", "policy_loss")
    with pytest.raises(UserError, match=r"clip_high is in 'grpo.*' and in params: give one"):
        F.policy_loss(line, **given, params={"clip_high": 0.3, **place})
    with pytest.raises(UserError, match=r"clip_low and epsilon are the same parameter of grpo"):
        F.policy_loss("grpo(clip_low=0.1)", **given, params={"epsilon": 0.3})
    with pytest.raises(UserError, match="or a line such as 'grpo"):
        F.inputs(None, "policy_loss")


def test_groups_that_are_texts_are_refused_with_what_to_do():
    uid = np.array(["a", "a"], dtype=object)
    with pytest.raises(UserError, match="groups holds texts or objects: number them, such as by"):
        F.advantages("grpo", rewards=torch.tensor([1.0, 0.0]), groups=uid)


ZERO = f64([0, 0], [0, 0], [0, 0])


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("grpo", {"rewards": f64(0, 1, -math.inf)}),
        ("gdpo", {"reward_components": f64([0, 1], [1, 0], [0, math.inf])}),
        ("gae", {"token_rewards": f64([0, 0], [0, 1], [math.inf, 0]), "values": ZERO}),
    ],
)
def test_an_infinite_reward_is_refused(recipe, given):
    mask, groups = torch.tensor([[1, 1], [1, 0], [1, 1]]), torch.tensor([0, 0, 0])
    name = next(iter(given))
    with pytest.raises(UserError, match=f"{name} must be finite, or NaN where there"):
        F.advantages(recipe, groups=groups, mask=mask, **given)
    outside = torch.tensor([[1, 1], [1, 1], [0, 1]])  # there no number of a token matters
    if name == "token_rewards":
        assert F.advantages(recipe, mask=outside, **given).isfinite().all()
