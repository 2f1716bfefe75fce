import math
import statistics

import pytest
import torch
from builders import flat_batch, run

from strop import functional as F
from strop.method.check import check
from strop.parts.advantage.credit.map_turn_rewards import MapTurnRewards
from strop.parts.advantage.credit.share_by_turn_credit import ShareByTurnCredit
from strop.parts.advantage.weight.add_feedback_gain import AddFeedbackGain
from strop.recipes.infopo import infopo

GAINS = torch.tensor([0.02, 0.05, 0.01, 0.04], dtype=torch.float64)[:, None]
FAILED = torch.zeros(4, dtype=torch.float64)


def advantages(rewards, gains, mask=None, turns=None, **params):
    """One token a turn unless mask and turns say otherwise."""
    mask = torch.ones(gains.shape, dtype=torch.bool) if mask is None else mask
    turns = torch.arange(gains.shape[1]).expand(gains.shape) if turns is None else turns
    groups = torch.zeros(len(rewards), dtype=torch.long)
    return F.advantages("infopo", rewards=rewards, groups=groups, mask=mask, turn_ids=turns,
                        turn_gains=gains, params=params)  # fmt: skip


def test_worked_example_of_a_group_that_fails():
    found = advantages(FAILED, GAINS)
    assert found.flatten().tolist() == pytest.approx([-0.1369, 0.2738, -0.2738, 0.1369], abs=1e-4)


@pytest.mark.parametrize(("T", "gate"), [(0.5, 0.2506), (0.05, 1.7e-5)])
def test_the_gate_closes_where_rewards_differ(T, gate):
    rewards = torch.tensor([1.0, 0, 0, 1, 1], dtype=torch.float64)
    gains = torch.tensor([[0.3], [0.1], [0.2], [0.5], [0.4]], dtype=torch.float64)
    outcome = advantages(rewards, gains, beta0=0.0)
    intrinsic = (gains - gains.mean()) / gains.std()
    found = advantages(rewards, gains, T=T) - outcome
    torch.testing.assert_close(found, 0.5 * gate * intrinsic, rtol=2e-2, atol=1e-7)


def test_weight_0_and_single_turns_are_grpo():
    rewards = torch.tensor([1.0, 0.0, 0.25, 0.5], dtype=torch.float64)
    groups = torch.zeros(4, dtype=torch.long)
    plain = F.advantages("grpo", rewards=rewards, groups=groups, params={"eps": 1e-6})[:, None]
    torch.testing.assert_close(advantages(rewards, GAINS, beta0=0.0), plain)
    torch.testing.assert_close(advantages(rewards, torch.zeros_like(GAINS)), plain)


def test_gains_count_over_the_turns_that_are_told():
    # the last turn that is told keeps its gain; those behind it have none
    given = {"rewards": FAILED, "groups": torch.zeros(4, dtype=torch.long),
             "mask": torch.ones(4, 2), "turn_ids": torch.arange(2).expand(4, 2)}  # fmt: skip
    gains = torch.cat([GAINS, torch.tensor([[9.0], [0.0], [3.0], [1.0]]).double()], 1)
    one, two = torch.full((4,), 1), torch.full((4,), 2)
    found = F.advantages("infopo", turn_gains=gains, n_turns=one, **given)
    # four more tokens without a gain: the deviation of z over all is below 1, the ratio is 1
    torch.testing.assert_close(found[:, :1], advantages(FAILED, GAINS))
    assert not found[:, 1].any()
    found = F.advantages("infopo", turn_gains=gains, n_turns=two, **given)
    torch.testing.assert_close(found, F.advantages("infopo", turn_gains=gains, **given))


def test_worked_example_where_turns_are_told():
    given = {"mask": torch.ones(4, 1), "turn_ids": torch.zeros(4, 1, dtype=torch.long),
             "groups": torch.zeros(4).long(), "n_turns": torch.ones(4).long()}  # fmt: skip
    found = F.advantages("infopo", rewards=FAILED, turn_gains=GAINS, **given)
    assert found.flatten().tolist() == pytest.approx([-0.137, 0.274, -0.274, 0.137], abs=5e-4)


def test_a_turns_gain_is_shared_by_its_tokens_and_no_gain_gets_nothing():
    gains = torch.tensor([[0.4, 0.0], [0.1, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 1]])
    turns = torch.tensor([[0, 0, -1, 1], [0, -1, -1, 1]])
    found = advantages(torch.zeros(2, dtype=torch.float64), gains, mask, turns)
    # tokens 0.2, 0.2 and 0.1: mean 1/6, deviation 0.057735; over all five tokens z has 0.70711
    high, low = 0.2 / 6 / 0.057735, -0.4 / 6 / 0.057735
    wanted = [[high, high, 0, 0], [low, 0, 0, 0]]
    assert (4 * found).tolist() == [pytest.approx(row, abs=1e-3) for row in wanted]


def test_an_only_gain_is_none():
    gains = torch.tensor([[0.4], [0.0]], dtype=torch.float64)
    assert not advantages(torch.zeros(2, dtype=torch.float64), gains).any()


def test_large_gains_do_not_drown_outcomes():
    """The ratio holds z to the deviation of the outcomes, or to 1."""
    gains = torch.zeros(20, 1, dtype=torch.float64)
    gains[:2, 0] = torch.tensor([1.0, 2.0])
    found = advantages(torch.zeros(20, dtype=torch.float64), gains)
    assert found.abs().max() <= 0.25 * math.sqrt(0.5) + 1e-6


def test_what_is_added_to_deviations():
    # gains 10 and 20: z = -+5 / (7.0711 + .5), deviation sqrt(2) z; that of the outcomes .7071
    batch = flat_batch((1, 1), advantage_T=[0.5, -0.5], reward_B=[0.0, 0.0], gain_K=[10.0, 20.0])
    z = 5 / (50**0.5 + 0.5)
    ratio = (0.5**0.5 + 0.5) / (z * 2**0.5 + 0.5)
    bonus = 0.5 * 0.5 * ratio * z
    found = run(AddFeedbackGain(deviation=(0.5, True)), batch).value
    assert found.tolist() == pytest.approx([0.5 - bonus, -0.5 + bonus])


def test_the_weight_falls_with_the_epochs():
    later = advantages(FAILED, GAINS, decay=0.7, epoch=2.0)
    torch.testing.assert_close(later, math.exp(-1.4) * advantages(FAILED, GAINS))


def test_without_division_outcomes_are_centred_alone():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    found = advantages(rewards, GAINS, beta0=0.0, divide_by_std=False)
    assert found.flatten().tolist() == [0.5, -0.5, -0.5, 0.5]


def test_without_division_gains_are_centred_alone():
    # .02, .05, .01, .04 less .03; nobody succeeds: half the weight .5, ratio 1
    found = advantages(FAILED, GAINS, divide_by_std=False)
    assert found.flatten().tolist() == pytest.approx([-0.0025, 0.005, -0.005, 0.0025])


def test_unscored_rollouts_take_part_in_nothing():
    rewards = torch.tensor([0.0, 0, 0, 0, float("nan")], dtype=torch.float64)
    gains = torch.cat([GAINS, torch.full((1, 1), 9.0, dtype=torch.float64)])
    found = advantages(rewards, gains)
    torch.testing.assert_close(found[:4], advantages(FAILED, GAINS))
    assert found[4] == 0


# one group of three; turns of 2 and 1 tokens, 1 and 1, 1 and 2, with a reward each
TURN_REWARDS = torch.tensor([[0.5, 1.0], [0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
TURNS = {
    "mask": torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]]),
    "turn_ids": torch.tensor([[0, 0, 1], [0, 1, -1], [0, 1, 1]]),
    "groups": torch.zeros(3).long(),
    "turn_rewards": TURN_REWARDS,
    "turn_gains": torch.zeros(3, 2).double(),
}


def shared(**params):
    return F.advantages("infopo", rewards=TURN_REWARDS.sum(1), params=params, **TURNS)


def z_of(scores):
    return [(x - statistics.mean(scores)) / (statistics.stdev(scores) + 1e-6) for x in scores]


def by_hand(credits, scores):
    """The released code's formula over plain lists: credit times z over the mean credit."""
    tokens = [[row[turn] for turn in turns if turn >= 0]
              for row, turns in zip(credits, TURNS["turn_ids"].tolist(), strict=True)]  # fmt: skip
    found = []
    for z, row in zip(z_of(scores), tokens, strict=True):
        told = sum(credit != 0 for credit in row)
        spread = [z * credit * told / sum(row) if sum(row) else 0.0 for credit in row]
        found.append(spread + [0.0] * (3 - len(row)))
    return found


def test_credits_of_turns_rescale_the_outcome():
    sums = [1.5, 0.0, 1.0]
    ahead = [[0.5 + 0.8, 1.0], [0.0, 0.0], [0.8, 1.0]]
    half = 0.5 + 0.5 * (1 - math.exp(-1)) / (1 - math.exp(-2))
    own = [[half, 1.0], [0.5, 0.5], [0.5, 1.0]]
    for credit, credits in (("discounted", ahead), ("mapped", own), ("equal", [[1, 1]] * 3)):
        found = shared(turn_credit=credit)
        torch.testing.assert_close(found, torch.tensor(by_hand(credits, sums)).double())
    # the first rollout: 1.3 and 1 over a mean of (2 * 1.3 + 1) / 3 = 1.2
    z = z_of(sums)[0]
    first = shared(turn_credit="discounted")[0].tolist()
    assert first == pytest.approx([z * 1.3 / 1.2, z * 1.3 / 1.2, z / 1.2])


def test_tokens_without_credit_do_not_count_in_the_mean():
    # turns of credit 3, 1 and 0; of five tokens one is masked: 2 tokens share, credits sum to 4
    batch = flat_batch(
        (5,), turn_T=[0, 0, 1, 2, 2], rollout_K=[0] * 3, mask_T=[True, False, True, True, True],
        advantage_B=[2.0], credit_K=[3.0, 1.0, 0.0],
    )  # fmt: skip
    assert run(ShareByTurnCredit(), batch).value.tolist() == [3.0, 0.0, 1.0, 0.0, 0.0]


def test_rollouts_compared_by_discounted_rewards():
    scores = [1.3, 0.0, 0.8]
    found = shared(score="discounted", gamma=0.8)
    torch.testing.assert_close(found, torch.tensor(by_hand([[1, 1]] * 3, scores)).double())
    # the gate is of the scores' deviation too
    told = {**TURNS, "turn_gains": torch.tensor([[0.4, 0], [0.1, 0], [0.3, 0]]).double()}
    gained = F.advantages("infopo", rewards=TURN_REWARDS.sum(1),
                          params={"score": "discounted"}, **told) - found  # fmt: skip
    values = [0.2, 0.2, 0.1, 0.3]
    gate = 1 / (1 + math.exp(statistics.stdev(scores) / 0.5))
    wanted = 0.5 * gate * (0.3 - statistics.mean(values)) / (statistics.stdev(values) + 1e-6)
    assert float(gained[2, 0]) == pytest.approx(wanted, rel=1e-4)


def test_a_row_without_turns_has_the_discounted_reward_0():
    more = {name: torch.cat([column, column[:1] * 0]) for name, column in TURNS.items()}
    more["turn_ids"][3] = -1
    found = F.advantages("infopo", rewards=more["turn_rewards"].sum(1),
                         params={"score": "discounted", "gamma": 0.8}, **more)  # fmt: skip
    assert float(found[0, 0]) == pytest.approx(z_of([1.3, 0.0, 0.8, 0.0])[0])
    assert (found[3] == 0).all()


def test_a_turns_credit_with_hardly_any_bend_is_a_line():
    reward_K = torch.tensor([0.0, 0.3, 1.0])
    found = MapTurnRewards(1e-6)(reward_K).tolist()
    assert found == pytest.approx([0.5, 0.65, 1.0], abs=1e-5)


def test_composes_and_refuses():
    for credit in ("equal", "discounted", "mapped"):
        for score in ("sum", "discounted"):
            check(infopo(turn_credit=credit, score=score))
    assert [term.name for term in infopo(entropy_coef=0.0).terms] == ["policy"]
    assert infopo().terms[1].coef == 1e-3


def test_the_gate_and_the_share_of_tokens_with_a_gain_are_logged():
    # turns of one and of three tokens, the second without a gain; equal rewards: the gate is 1/2
    batch = flat_batch((1, 3), advantage_T=[0.0] * 4, reward_B=[1.0, 1.0], gain_K=[0.7, 0.0])
    told = run(AddFeedbackGain(), batch).metrics
    assert told == {"feedback_gain/gate": 0.5, "feedback_gain/frac_tokens": 0.25}
