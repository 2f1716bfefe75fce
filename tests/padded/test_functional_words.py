"""Names of papers in padded calls, calls made of several calls, and state between steps."""

import math

import pytest
import torch
from builders import f64

from strop import functional as F
from strop.support.errors import UserError

ONE_GROUP = torch.zeros(4, dtype=torch.int64)


def close(found, *expected):
    torch.testing.assert_close(found.double(), f64(*expected), atol=6e-5, rtol=0)


def test_advantages_divided_by_the_longest_answer():
    """Its code divides the advantages, ours the sums of the loss: the same loss."""
    given = {"rewards": f64(1, 0, 1, 1), "groups": ONE_GROUP, "lengths": [1, 2, 3, 4]}
    params = {"metric": "length", "mu": 0.5}
    plain = F.advantages("canon", **given, params=params)
    close(plain, 0.25, -0.75, 0.25, 0.25)
    found = F.advantages("canon", **given, params={**params, "max_length": 8})
    close(found, 0.25 / 8, -0.75 / 8, 0.25 / 8, 0.25 / 8)
    tokens = {"logp": torch.full((4, 5), -1.0).double(), "logp_old": torch.full((4, 5), -1.1),
              "mask": torch.arange(5) < torch.tensor([[1], [2], [3], [5]])}  # fmt: skip
    ours, _ = F.policy_loss("canon", **tokens, advantages=plain, params={"length": 8})
    theirs, _ = F.policy_loss("canon", **tokens, advantages=found, params={"max_length": 8})
    assert float(ours) == pytest.approx(float(theirs), rel=1e-12)
    for wrong in ({"max_length": -1}, {"max_length": 8, "aggregation": "token-mean"},
                  {"max_length": 8, "length": 8}):  # fmt: skip
        with pytest.raises(UserError, match="max_length divides the advantages"):
            F.advantages("canon", **given, params={**params, **wrong})


@pytest.mark.parametrize("word", ["accumulation", "gradient_accumulation_steps"])
def test_one_of_several_micro_batches(word):
    # c0 .01 and H .3, .19: .01 is applied in the third step, to a mean entropy of 2
    bonus = {"entropy": f64([1, 3]), "mask": torch.ones(1, 2), "step_entropy": [0.3, 0.19]}
    params = {"c0": 0.01, word: 4}
    loss, metrics = F.policy_loss("adaptive_entropy_coef", **bonus, params=params)
    assert float(loss) == pytest.approx(-2 * 0.01 / 4)
    assert metrics["loss/entropy"] == pytest.approx(float(loss))
    tokens = {"logp": f64([-1, -2]), "logp_old": f64([-1, -2]), "mask": torch.ones(1, 2)}
    weights = F.token_weights("grpo", **tokens, advantages=f64(3), params={word: 3})
    close(weights, [0.5, 0.5])
    assert F.advantages("grpo", rewards=f64(1, 0), groups=[0, 0], params={word: 3}).shape == (2,)
    for wrong in (0, 2.0, True, "two"):
        with pytest.raises(UserError, match=f"{word} must be a whole number from 1 on"):
            F.policy_loss("grpo", **tokens, advantages=f64(3), params={word: wrong})
    both = {"accumulation": 2, "gradient_accumulation_steps": 4}
    with pytest.raises(UserError, match="are the same: give one"):
        F.policy_loss("grpo", **tokens, advantages=f64(3), params=both)


# The card's rollouts: [5, 6, 7, 9] is good, the other two are bad.
SHARED = {"advantages_seq": f64(1, -0.5, -0.5), "mask": torch.ones(3, 4)}
TOKENS = torch.tensor([[5, 6, 7, 9], [5, 6, 8, 9], [5, 4, 8, 9]])
LAMBDA, CONFLICTS = f64([2, 2, 1, 2], [0, 0, 1, 0], [0, 1, 1, 0]), f64(3, 3, 2)


def test_conflicts_that_are_found_and_conflicts_that_are_known():
    given = {**SHARED, "mean_entropy": f64(0.5, 0.3, 0.5)}
    charged = f64([0.95], [-0.53], [-0.55])
    expected = (charged * LAMBDA).tolist()
    close(F.advantages("gtpo_conflict", **given, token_ids=TOKENS), *expected)
    close(F.advantages("gtpo_conflict", **given, lambda_=LAMBDA), *expected)
    close(
        F.advantages("gtpo_conflict", **given, lambda_=LAMBDA, n_conflict=CONFLICTS),
        *(charged * LAMBDA / f64([3], [3], [2])).tolist(),
    )
    code = {"variant": "code"}  # which divides by its own counts
    close(
        F.advantages("gtpo_conflict", **given, token_ids=TOKENS, params=code),
        *(charged * LAMBDA / f64([3], [3], [2])).tolist(),
    )
    with pytest.raises(UserError, match="n_conflict goes with lambda_, which is missing"):
        F.advantages("gtpo_conflict", **given, token_ids=TOKENS, n_conflict=CONFLICTS)
    with pytest.raises(UserError, match=r"lambda_ must be \[B\] or \[3, 4\]"):
        F.advantages("gtpo_conflict", **given, lambda_=LAMBDA[:, :3])


def test_a_loss_from_advantages_of_rollouts():
    """The third rollout's entropy is above ln 2, the step's is not: it counts, and learns not."""
    given = {**SHARED, "mean_entropy": f64(0.5, 0.3, 0.9), "lambda_": LAMBDA,
             "n_conflict": CONFLICTS}  # fmt: skip
    logp = f64([-1, -2, -3, -4]).repeat(3, 1)
    weights = F.token_weights("gtpo_conflict_loss", logp=logp, **given)
    charged = f64([0.95 / 3], [-0.53 / 3], [0])
    close(weights, *(charged * LAMBDA / 4 / 3).tolist())
    every = F.token_weights("gtpo_conflict_loss", logp=logp, **given, params={"threshold": 1.0})
    assert every[2, 1] == pytest.approx((-0.5 - 0.09) / 2 / 4 / 3)
    # the same by the three calls that it stands for
    found = F.advantages("gtpo_conflict", **given)
    kept, counted = F.selection("gtpo_conflict", advantages=found, mask=given["mask"],
                                mean_entropy=given["mean_entropy"])  # fmt: skip
    ours, _ = F.policy_loss("gtpo_conflict", logp=logp, **given)
    theirs, _ = F.policy_loss("gtpo_conflict", logp=logp, advantages=found, mask=kept,
                              denominator_mask=counted)  # fmt: skip
    assert ours == theirs
    with pytest.raises(UserError, match="give advantages or advantages_seq, not both"):
        F.policy_loss("gtpo_conflict", logp=logp, advantages=found, **given)


def test_steps_of_a_tracked_success():
    """The card's tracker: v = 1, a failure at rho .9175, V = 7.34 / 8.34."""
    given = {"rewards": f64(1, 0), "groups": [7, 7], "mask": torch.ones(2, 1),
             "entropy": torch.zeros(2, 1), "steps": [2, 1]}  # fmt: skip
    for outcomes in (f64(1, 1), f64([1, 1, 1], [1, 1, 1])):
        found = F.advantages("mssr", **given, initial_outcomes=outcomes)
        close(found[:, 0], 1 - 7.34 / 8.34, -1)
    state = F.next_state("mssr", **given, initial_outcomes=f64(1, 1))
    tracked = state["advantage.subtract_tracked_success"]
    assert tracked["right"].tolist() == pytest.approx([7.34 * 0.9175 + 1])
    assert tracked["wrong"].tolist() == pytest.approx([0.9175])
    half = F.advantages("mssr", **given, initial_outcomes=f64([1, 0], [1, 0]))
    close(half[:, 0], 1 - 4 * 0.9175 / (8 * 0.9175 + 1), -0.5)
    plain = {"rewards": f64(1, 0), "groups": [7, 8], "mask": torch.ones(2, 1)}
    off = F.advantages("mssr", **plain, params={"shaping": False})
    close(off[:, 0], 1, -1)
    on = F.advantages("mssr", **plain, entropy=torch.ones(2, 1), params={"shaping": True})
    close(on[:, 0], 1.4, -0.6)
    with pytest.raises(UserError, match="shaping is true or false, it is 'no'"):
        F.advantages("mssr", **plain, params={"shaping": "no"})
    with pytest.raises(UserError, match="without shaping alpha is 0: leave one"):
        F.advantages("mssr", **plain, params={"shaping": False, "alpha": 0.4})
    assert F.inputs("mssr", "advantages")["steps"] is False
    with pytest.raises(UserError, match="groups has 1 rows, steps has 2"):
        F.advantages("mssr", **{**given, "groups": [7]})
    with pytest.raises(UserError, match=r"steps must be \[B\]"):
        F.advantages("mssr", **{**given, "steps": [[1, 2]]})
    with pytest.raises(UserError, match="takes no steps"):
        F.advantages("grpo", rewards=f64(1, 0), groups=[0, 0], steps=[1, 2])


def test_turns_get_what_updates_of_later_turns_hand_on():
    """The card's: s = 1.1, then 1.15: the next turn has 1.6202 * 1.1, the first 1.6202 * 1.2."""
    given = {"rewards": f64(1, 0, 0, 0, 1, 1, 1, 0), "groups": [0] * 4 + [1] * 4}
    changes = torch.zeros(8, 3).double()
    changes[0] = f64(math.nan, math.log(1.15), math.log(1.1))  # the first turn comes last
    found = F.advantages("seeupo", **given, turn_updates=changes)
    close(found[0], 1.9442, 1.7822, 1.6202)
    close(found[7], *[-1.6202] * 3)
    forward = F.advantages("seeupo", **given, turn_updates=changes, params={"order": "forward"})
    close(forward[0], 1.6202, 1.6202, 1.6202 * 1.15)
    mask = torch.ones(8, 4)
    mask[:, 1] = 0
    turn_ids = torch.tensor([[0, 1, 1, 2]]).expand(8, 4)
    tokens = F.advantages("seeupo", **given, turn_updates=changes, mask=mask, turn_ids=turn_ids)
    close(tokens[0], 1.9442, 0, 1.7822, 1.6202)
    with pytest.raises(UserError, match="columns of turns need turn_ids or trajectories"):
        F.advantages("seeupo", **given, turn_updates=changes, mask=mask)


def test_praise_and_baselines_of_retries():
    given = {"rewards": f64(1, 0.4, 0.1, 0.1), "groups": ONE_GROUP}
    close(F.advantages("r3l", **given, params={"amplify": 3.0}), 1, 0, -0.3, -0.3)
    close(F.advantages("r3l", **given, params={"success_threshold": 0.4}), 1, 1, -0.3, -0.3)
    pair = {"rewards": f64(0.5, 0.1), "groups": [0, 0]}
    close(F.advantages("r3l", **pair, params={"amplify": 1.0, "baseline": "mean"}), 0.2, -0.2)
    # .5 log((e + e^.2) / 2) = .338977
    soft = {"baseline": "logavgexp", "tau": 0.5, "amplify": 1.0}
    close(F.advantages("r3l", **pair, params=soft), 0.161023, -0.238977)
    ragged = {"rewards": f64(0.5, math.nan, 0.3, 0.3, 0.7), "groups": [0, 0, 1, 1, 2]}
    close(F.advantages("r3l", **ragged, params=soft), 0.5, 0, 0, 0, 0.7)
    wide = F.advantages("r3l", **pair, params={**soft, "tau": 1e6})
    close(wide, 0.2, -0.2)
    with pytest.raises(UserError, match="baseline must be one of mean, logavgexp: 'best'"):
        F.advantages("r3l", **pair, params={"baseline": "best"})


def test_a_word_that_means_nothing_says_what_to_give():
    """The card's distinct values 0, 1, 2 are had by rewards of one turn each."""
    with pytest.raises(UserError, match=r"takes no values: it has no critic .* turn_rewards"):
        F.advantages("mars", values=f64([0], [1], [2]), players=[0, 0, 0])
    params = {"variant": "code", "reward_norm": "none", "whiten_rewards": False,
              "whiten_advantages": False}  # fmt: skip
    close(F.advantages("mars", turn_rewards=f64([0], [1], [2]), params=params), [-1], [0], [1])


def test_agents_in_turn_by_the_masks_of_their_buffer():
    """The card's two steps of two agents; a value of .5 that came after them."""
    given = {"turn_rewards": f64([0, 0, 0, 1]), "value": f64([0.4, 0.5, 0.6, 0.7]),
             "step_masks": [[1, 1, 1, 0]], "params": {"normalize": False}}  # fmt: skip
    close(F.advantages("marft", **given), [0.5152, 0.4468, 0.3752, 0.3])
    with pytest.raises(UserError, match=r"takes no next_value: what follows .* is worth 0"):
        F.advantages("marft", **given, next_value=0.5)
    given["turn_rewards"] = f64([0, 0, 0, 1 + 0.99 * 0.5])
    assert F.advantages("marft", **given)[0, 3] == pytest.approx(1 + 0.99 * 0.5 - 0.7)


def test_a_tree_has_a_row_for_each_leaf():
    close(F.advantages("spo_tree", tree=[[1, 0], [0, 0]]),
          [0.25, 0.5], [0.25, -0.5], [-0.25, 0], [-0.25, 0])  # fmt: skip
    close(F.advantages("spo_tree", tree=[[1, 0], 1]), [-0.25, 0.5], [-0.25, -0.5], [0.25, 0])
    grpo = F.advantages("spo_tree", tree=[[1, 0], [0, 0]], params={"mode": "grpo"})
    close(grpo, [1, 1], [1, -1], [-1, 0], [-1, 0])
    assert F.inputs("spo_tree", "advantages")["tree"] is False
    with pytest.raises(UserError, match="a tree stands alone, leave groups out"):
        F.advantages("spo_tree", tree=[1, 0], groups=[0, 0])
    with pytest.raises(UserError, match="credits no edges of a tree"):
        F.advantages("grpo", tree=[1, 0])


def test_success_foreseen_from_prompts():
    """One known text of success 1, one of 0; both unlike each other: (.5 + 1) / (2 + e^-10)."""
    given = {"groups": [4, 4, 9], "mask": torch.ones(3, 1), "texts": ["aaa", "aaa", "bbb"]}
    state = F.next_state("v_half", **given, rewards=f64(1, 1, 0))
    history = state["sampling.predict_success_from_history"]
    assert history["success_N"].tolist() == [1, 0]
    assert history["drawn"] == {}
    again = {"rewards": f64(1, 0, 1), **given}
    found = F.advantages("v_half", **again, state=state)
    del again["texts"]
    prior = f64(*[1.5 / (2 + math.exp(-10))] * 2, 0.5 / (2 + math.exp(-10)))
    close(found, *F.advantages("v_half", **again, prior=prior).tolist())
    first = F.advantages("v_half", **again, texts=given["texts"])
    close(first, *F.advantages("v_half", **again, prior=f64(0.5, 0.5, 0.5)).tolist())
    for texts, message in (
        ("aaa", "must be a list"), (["aaa"], "1 rows"), ([1, 2, 3], "there is a int"),
        (["aaa", "ccc", "bbb"], "group 4 have different prompts"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            F.next_state("v_half", **{**again, "texts": texts})
    with pytest.raises(UserError, match="takes no texts"):
        F.advantages("grpo", rewards=f64(1, 0), groups=[0, 0], texts=["a", "a"])
    with pytest.raises(UserError, match="needs texts, the prompt of each row"):
        F.next_state("v_zero", **again)


def test_a_ranking_that_was_made_beforehand():
    given = {"rewards": f64(1, 1, 1, 0), "groups": ONE_GROUP, "mask": torch.ones(4, 1),
             "angle": f64(*[0.3] * 4)}  # fmt: skip
    path = "sampling.draw_in_shuffled_order"
    state = F.next_state("gain_rl", **given, state={path: {"ranking": tuple(range(2000))}})
    assert state[path]["told"] == pytest.approx((3.0, 1.2, 4))
    state = F.next_state("gain_rl", **given, state=state)
    assert state[path]["told"] == pytest.approx((6.0, 2.4, 8))
    assert state[path]["centre"] == 0.0  # it moves where the next period is drawn
    with pytest.raises(UserError, match="draw_along_ranking needs the state that it has made"):
        F.next_state("gain_rl", **given)


def test_windows_that_a_reward_counts():
    """One prompt right in one of four: hard. Of five tokens two windows of four are whole."""
    given = {"rewards": f64(1, 0, 0, 0), "groups": ONE_GROUP, "mask": torch.ones(4, 5)}
    # 95% quantiles .1, .1, .1, 1: only the last rollout's windows are above .325
    entropy = f64([0.1] * 5, [0.1] * 5, [0.1] * 5, [1.0] * 5)
    state = F.next_state("ares_aepo", **given, entropy_behavior=entropy)
    path = "reward.reward_open_windows"
    assert state[path]["target"] == pytest.approx((-1, -1, 0.5))
    known = {"window_cost": torch.zeros(4), "in_window": torch.zeros(4, 5)}
    code, state = {"variant": "code"}, None
    for cap in (0.5 + 0.05 * 0.25, 0.5 + 0.05 * 0.5):  # 1.75 windows on average, 2 rounded
        state = F.next_state("ares_aepo", **given, **known, windows=f64(2, 4, 0, 1), params=code,
                             state=state)  # fmt: skip
        assert state[path] == {"target": (-1, -1, -1), "alpha": pytest.approx((0.5, 0.5, cap))}
    with pytest.raises(UserError, match="mark_windows_after_words needs a run's scoring and texts"):
        F.next_state("ares_aepo", **given, params=code)


def test_weights_of_rewards_that_a_judge_teaches():
    # phi 1, 0, 2 at weight 1; the second is preferred: s(1) = .731059, s(2) = .880797
    given = {"reward_components": f64([1], [0], [2]), "preference": f64(0, 1, 0),
             "rollout_uid": [5, 6, 7], "groups": [0, 0, 0]}  # fmt: skip
    params = {"implicit": False, "upper_lr": 0.1, "beta": 0.0}
    assert F.rewards("parl_bilevel", **given, params=params).tolist() == [1, 0, 2]
    state = F.next_state("parl_bilevel", **given, mask=torch.ones(3, 1), params=params)
    slope = (2 * 0.731059 + 4 * 0.880797 - 2 * (0.268941 - 0.5)) / 6
    weights = state["reward.learn_reward_weights"]["weights"]
    close(weights, 1 - 0.1 * slope)
    close(F.rewards("parl_bilevel", **given, params=params, state=state), *(weights * f64(1, 0, 2)))
    del given["preference"]
    with pytest.raises(UserError, match=r"and rollout_uid .* in place of a run's grading and log"):
        F.rewards("parl_bilevel", **given, params=params)


def test_a_part_that_learns_inside_a_run_is_refused():
    given = {"rewards": f64(1, 0), "groups": [0, 0], "mask": torch.ones(2, 1)}
    with pytest.raises(UserError, match="stop_sure_answers learns from answers while they are"):
        F.next_state("arrol", **given, rollout_uid=[1, 2])
