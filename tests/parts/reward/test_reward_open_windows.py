import json

import numpy as np
import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run
from fakes.services import FakeScoring, FakeServices, FakeTexts

from strop.method import part as parts
from strop.method.part import Use
from strop.parts.reward._open_windows import (
    code_bonus,
    covered,
    difficulty,
    means_after,
    whole_or_usual,
    window_means,
)
from strop.parts.reward.mark_open_windows import MarkOpenWindows
from strop.parts.reward.mark_windows_after_words import MarkWindowsAfterWords
from strop.parts.reward.reward_open_windows import RewardOpenWindows


def tensor(*values):
    return torch.tensor(values).double()


@pytest.mark.parametrize(
    ("of", "right", "rewards"),
    [
        (0, True, [1.0, 1.0, 0.5]),
        (1, True, [0.8182, 1.0, 0.8182]),
        (2, True, [0.9688, 1.4575, 1.5757]),
        (0, False, [0.15, 0.15, 0.2714]),
        (2, False, [0.3, 0.3, 0.4182]),
    ],
)
def test_worked_example_of_the_code(of, right, rewards):
    excess = tensor(4.0, 10.0, 16.0) - 10
    given = torch.full((3,), of), torch.full((3,), right)
    bonus = code_bonus(excess, tensor(10.0, 10.0, 10.0), *given, 0.5)
    assert (bonus + float(right)).tolist() == pytest.approx(rewards, abs=6e-5)


def test_windows_and_difficulty_by_hand():
    rollout = torch.tensor([0, 0, 0, 1, 1])
    mean, whole = window_means(tensor(1.0, 2.0, 6.0, 4.0, 0.0), rollout, 2)
    assert whole.tolist() == [True, True, False, True, False]
    assert mean[whole].tolist() == pytest.approx([1.5, 4.0, 2.0])
    begins = torch.tensor([False, True, False, False, True])
    assert covered(begins, 2).tolist() == [False, True, True, False, True]
    right = torch.tensor([True, True, False, True, False, False, False])
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    every = torch.ones(7, dtype=torch.bool)
    assert difficulty(right, group, 3, every).tolist() == [0, 0, 0, 1, 1, 1, 2]
    every[2] = every[4] = every[5] = False  # unscored ones do not count: 2 of 2 and 1 of 1
    assert difficulty(right, group, 3, every).tolist() == [0, 0, 0, 0, 0, 0, 2]


def test_windows_after_a_token():
    rollout = torch.tensor([0, 0, 0, 1, 1, 2])
    entropy = tensor(1.0, 2.0, 6.0, 4.0, 0.0, 7.0)
    mean, whole = means_after(entropy, rollout, 2)
    assert whole.tolist() == [True, False, False, False, False, False]
    assert mean[whole].tolist() == [4.0]
    # without room: the mean of the rollout's others, else its first token's entropy
    usual = whole_or_usual(mean, whole, entropy, rollout, 3)
    assert usual.tolist() == [4.0, 4.0, 4.0, 4.0, 4.0, 7.0]


def example(**columns):
    """Four rollouts of a medium prompt, two right; windows of one token."""
    entropy = [0.1] * 8
    for token in (0, 1, 4, 7):
        entropy[token] = 2.0
    return flat_batch(
        (2, 2, 2, 2), entropy_behavior_T=entropy, reward_B=[1.0, 0.0, 1.0, 0.0],
        outcome_B=[1.0, 0.0, 1.0, 0.0], **columns,
    )  # fmt: skip


def marked(batch, part=None, **run_with):
    """The batch with its windows."""
    names = ("windows_B", "window_cost_B", "in_window_T")
    found = run(part or MarkOpenWindows(width=1), batch, **run_with)
    return batch.set(**dict(zip(names, found.value, strict=True))), found


def test_windows_of_the_paper():
    batch, found = marked(example())
    assert batch["windows_B"].tolist() == [2.0, 0.0, 1.0, 1.0]
    # quantiles of 95%: 2, .1, and 1.905 twice; their mean
    level = (2 + 0.1 + 2 * 1.905) / 4
    assert found.metrics["ares/threshold"] == pytest.approx(level)
    assert batch["window_cost_B"].tolist() == pytest.approx(
        [2 * (2 - level), 0.0, 2 - level, 2 - level]
    )
    assert batch["in_window_T"].tolist() == [h > 1 for h in batch["entropy_behavior_T"]]


def test_the_paper_on_a_target_carried_over():
    # N = 2, 0, 1, 1 with tau between .1 and 2; mean 1, variance .5
    part, (batch, _) = RewardOpenWindows(), marked(example())
    reward, weight, of = run(part, batch, state=part.init()).value
    assert of.tolist() == [1] * 4
    assert reward.equal(batch["reward_B"])  # the target is the mean: lambda 0
    assert weight.tolist() == [0.67 if h > 1 else 1.0 for h in batch["entropy_behavior_T"]]
    state = {**part.init(), "target": (-1.0, 0.5, -1.0)}
    found = run(part, batch, state=json.loads(json.dumps(state)))
    factor = (1 - 0.5) / 0.5
    assert found.value[0].tolist() == pytest.approx([1.0, -factor * 0.5, 1.0, -factor * 0.5])
    assert found.metrics == pytest.approx({"ares/change_mean": -factor / 4, "ares/hard": 0.0})
    # all 2 where 1 is usual: no variance, (2 - 1) / 1e-8 for each wrong one
    level = run(part, batch.set(windows_B=tensor(2.0, 2.0, 2.0, 2.0)),
                state={**state, "target": (-1.0, 1.0, -1.0)}).value[0]  # fmt: skip
    assert level.tolist() == pytest.approx([1.0, -1e8, 1.0, -1e8])
    fewer = run(part, batch, state={**state, "target": (-1.0, 3.0, -1.0)}).value[0]
    assert fewer.equal(batch["reward_B"])  # below the target lambda is 0


def test_targets_are_running_means_of_the_steps():
    part = RewardOpenWindows()
    assert all(target < 0 for target in part.init()["target"])
    windows, of = tensor(2.0, 4.0, 1.0, 9.0), torch.tensor([1, 1, 0, 2])
    scored = torch.tensor([True, True, True, False])
    assert not hasattr(part, "update")  # which sees only what curation and selection keep
    groups = torch.arange(4), scored, 4
    state = part.observe(windows, of, *groups, part.init())
    assert state["target"] == (1.0, 3.0, -1.0)
    state = part.observe(windows + 1, of, *groups, state)
    assert state["target"] == pytest.approx((1.1, 3.1, -1.0))


def caps_after(part, batch, result):
    """The caps after the step of a batch."""
    after = parts.write(batch, Use(part), result)
    return parts.update(Use(part), after, result.state, "observe")["alpha"]


def test_the_rewards_of_the_code():
    part, (batch, _) = RewardOpenWindows("code"), marked(example())
    result = run(part, batch, state=part.init())
    # at a target of 1 with margin 1: right ones keep 1; wrong ones of a medium prompt .5 .5 .8
    assert result.value[0].tolist() == pytest.approx([1.0, 0.2, 1.0, 0.2])
    # the mean is a whole number
    assert caps_after(part, batch, result) == (0.5, 0.5, 0.5)
    easy = batch.set(outcome_B=tensor(1.0, 0.0, 1.0, 1.0), window_cost_B=tensor(9.0, 0.5, 9.0, 9.0))
    weight = run(part, easy, state=part.init()).value[1]
    assert weight.tolist() == pytest.approx([1.0, 1.0, 0.67, 0.67, 1.0, 1.0, 1.0, 1.0])
    cheap = easy.set(window_cost_B=tensor(9.0, 0.4, 9.0, 9.0))
    assert (run(part, cheap, state=part.init()).value[1] == 1).all()


def test_the_caps_of_the_code_move_by_what_rounding_leaves():
    part = RewardOpenWindows("code")
    batch, _ = marked(example())
    # an easy prompt of 2 and 3 windows and a hard one of 0, 1: means 2.5 -> 2, .5 -> 0
    batch = batch.set(
        windows_B=tensor(2.0, 3.0, 0.0, 1.0), group_B=torch.tensor([0, 0, 1, 1]),
        outcome_B=tensor(1.0, 1.0, 0.0, 0.0), uid_P=torch.tensor([1, 2]),
        draw_P=torch.zeros(2, dtype=torch.int64),
    )  # fmt: skip
    result = run(part, batch, state=part.init())
    assert caps_after(part, batch, result) == pytest.approx((0.525, 0.5, 0.475))
    # excess 0 and 1 within the margin 1: right easy ones keep 1; wrong hard ones S(0) alpha 1.2
    assert result.value[0].tolist() == pytest.approx([1.0, 0.0, 1 + 0.285, 0.285])
    low = run(part, batch, state={**part.init(), "alpha": (0.5, 0.5, 0.01)})
    assert caps_after(part, batch, low) == pytest.approx((0.525, 0.5, 0.0))


def test_the_caps_of_the_code_move_once_a_step():
    """Curation asks for more rollouts in a step, which are paid in a call of their own."""
    part, (batch, _) = RewardOpenWindows("code"), marked(example())
    batch = batch.set(windows_B=tensor(2.0, 3.0, 2.0, 2.0))  # a medium prompt: 2.25 -> 2
    first = run(part, batch, state=part.init())
    second = run(part, batch, state=first.state)
    assert second.value[0].equal(first.value[0])
    assert caps_after(part, batch, second) == pytest.approx((0.5, 0.5 + 0.05 * 0.25, 0.5))


PIECES = {3: "\u0120Wait", 4: "\u2581so", 5: "x", 6: "Wait,"}


class Told:
    """What a policy says of eight tokens: of the ten likeliest, the tail, the likeliest."""

    tops = (2.0, 0.1, 1.0, 1.0, 0.5, 0.2, 3.0, 0.4)
    tails = (0.0, 0.3, 0.5, 0.0, 0.5, 0.0, 0.0, 0.1)
    likeliest = (3, 5, 5, 4, 3, 5, 6, 3)

    def __call__(self, batch, names):
        assert names == ("top_entropy_10_T", "tail_entropy_10_T", "top_token_1_T")
        columns = (self.tops, self.tails, self.likeliest)
        return {name: tensor(*column) for name, column in zip(names, columns, strict=True)}


def known(level):
    return {"level": level, "tops": torch.zeros(0)}


def after_words(words, state=None, **fields):
    part = MarkWindowsAfterWords(words=words, **fields)
    services = FakeServices(FakeTexts(pieces=PIECES), scoring=FakeScoring(Told()))
    batch = flat_batch((4, 4), reward_B=[0.0, 0.0])
    return part, marked(batch, part, state=state or part.init(), services=services)


def code_by_hand(width, words, level):
    """The released code's count and cost of both rollouts, over plain lists."""
    names = {3: "wait", 4: "so", 5: "x", 6: "wait,"}
    found, thresholds = [], []
    for begin in (0, 4):
        own = slice(begin, begin + 4)
        top = Told.tops[own]
        whole = [a + b for a, b in zip(top, Told.tails[own], strict=True)]
        count = cost = 0.0
        means = []
        for i, token in enumerate(Told.likeliest[own]):
            room = 4 - i - 1 >= width
            if room:
                means.append(sum(top[i + 1 : i + 1 + width]) / width)
            else:
                means.append(sum(means) / len(means) if means else top[i])
            mean = sum(whole[i + 1 : i + 1 + width]) / width
            if names[token] in words and room:
                cost += max(mean - level, 0.0)
                count += mean >= level
        found.append((count, cost))
        thresholds.append(float(np.percentile(means, 95)))
    return found, float(np.median(thresholds))


@pytest.mark.parametrize("width", [1, 2])
def test_windows_after_words_are_the_released_codes(width):
    for words, level in (("wait so", 0.6), ("WAIT", 0.3), ("wait so x wait,", 1.2)):
        part, (batch, found) = after_words(words, known(level), width=width)
        wanted, now = code_by_hand(width, words.lower().split(), level)
        assert batch["windows_B"].tolist() == [count for count, _ in wanted]
        assert batch["window_cost_B"].tolist() == pytest.approx([cost for _, cost in wanted])
        assert found.metrics["ares/threshold"] == level  # that of the steps before
        assert part.observe(found.state)["level"] == pytest.approx(0.99 * level + 0.01 * now)


def test_all_rollouts_of_a_step_meet_the_same_threshold():
    """Curation asks for more rollouts in a step: they come later, and move the threshold too."""
    part, (_, first) = after_words("so", known(0.5), width=1)
    _, (_, second) = after_words("so", first.state, width=1)
    assert second.metrics["ares/threshold"] == 0.5
    now = code_by_hand(1, ("so",), 0.5)[1]  # of the same rollouts twice
    after = part.observe(second.state)
    assert after["level"] == pytest.approx(0.99 * 0.5 + 0.01 * now)
    assert not len(after["tops"])


def test_without_words_every_token_counts_and_the_first_threshold_is_the_steps_own():
    part, (batch, found) = after_words("", width=1)
    wanted, now = code_by_hand(1, ("wait", "so", "x", "wait,"), code_by_hand(1, (), 0)[1])
    after = part.observe(found.state)["level"]
    assert after == found.metrics["ares/threshold"] == pytest.approx(now)
    assert batch["windows_B"].tolist() == [count for count, _ in wanted]
    opened = [any(row) for row in batch["in_window_T"].reshape(2, 4).tolist()]
    assert opened == [count > 0 for count, _ in wanted]
    assert not batch["in_window_T"][[0, 4]].any()  # a window is behind its token


def test_windows_after_words_need_no_reward():
    """They are found before anything is scored, as those of the paper are; the names of columns
    that are read may be others.
    """
    part = MarkWindowsAfterWords(words="wait", width=1)
    services = FakeServices(FakeTexts(pieces=PIECES), scoring=FakeScoring(Told()))
    batch = flat_batch((4, 4), trusted_B=[False, True])
    use = Use(part, (("scored_B", "trusted_B"),))
    found = parts.call(use, batch, services, state=known(0.3))
    wanted, _ = code_by_hand(1, ("wait",), 0.3)
    assert found.value[0].tolist() == [count for count, _ in wanted]
    assert found.metrics["ares/windows_mean"] == wanted[1][0]


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_unscored_rollouts_void_entropies_and_the_mask_do_not_matter(variant):
    part = RewardOpenWindows(variant)
    batch, _ = marked(ragged_batch(3), MarkOpenWindows(width=2))
    reward, weight, _ = run(part, batch, state=part.init()).value
    assert reward[4].isnan()
    assert weight.isfinite().all()
    scored = batch["scored_B"]
    other = batch.set(outcome_B=torch.where(scored, batch["outcome_B"], 1.0))
    again = run(part, other, state=part.init()).value[0]
    assert again[scored].equal(reward[scored])
    void = batch.set(entropy_behavior_T=torch.full_like(batch["entropy_behavior_T"], NAN))
    assert marked(void, MarkOpenWindows(width=2))[0]["window_cost_B"].isfinite().all()
    empty, _ = marked(batch.keep(batch["index_B"] < 0))
    assert run(part, empty, state=part.init()).value[0].shape == (0,)
