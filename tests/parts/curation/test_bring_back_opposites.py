import pytest
import torch
from fakes.services import FakeServices, FakeTexts
from ragged import ragged_batch

from strop.batch.batch import Batch
from strop.method.part import EARLIER, Use, call
from strop.parts.curation.bring_back_opposites import RETRY, WORDS, BringBackOpposites
from strop.support.errors import UserError


class Words(FakeTexts):
    """Answers as token ids; a reworded prompt is its uid, the number of words and the answer."""

    def __init__(self, room=100):
        super().__init__()
        self.room, self.asked = room, []

    def reworded_ids(self, uid, words, answer):
        self.asked.append((uid, tuple(answer)))
        ids = (uid, len(words), *answer)
        return ids if len(ids) <= self.room else ()


def batch_of(step, outcomes, uids=(7, 8), draws=(0, 0), scored=None, episodes=False):
    """Groups of three with these outcomes; every token is the policy's but each first."""
    outcome_B = torch.tensor(outcomes).double()
    num = len(outcomes)
    batch = ragged_batch(step, group_sizes=(3,) * (num // 3), max_turns=1)
    order = torch.argsort(batch["group_B"], stable=True)
    batch = batch.take(order)
    if not episodes:
        batch = Batch({k: v for k, v in batch.columns.items() if k != "valid_K"})
    scored_B = torch.ones(num, dtype=torch.bool) if scored is None else torch.tensor(scored)
    return batch.set(
        step=torch.tensor(step), outcome_B=outcome_B, reward_B=outcome_B, scored_B=scored_B,
        uid_P=torch.tensor(uids), draw_P=torch.tensor(draws),
        rollout_uid_B=10 * step + torch.arange(num), origin_T=torch.where(batch["mask_T"], 0, 1),
        role_B=torch.zeros_like(batch["group_B"]),
    )  # fmt: skip


def go(part, batch, state, texts=None, seed=0):
    rng = torch.Generator().manual_seed(seed)
    services = FakeServices(texts or Words())
    return call(Use(part), batch, state=state, rng=rng, services=services)


FIRST = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]  # prompt 7: two wrong, one right; prompt 8: all right


def test_groups_of_one_outcome_get_the_other_one():
    part = BringBackOpposites(num_added=2)
    first = go(part, batch_of(1, FIRST), part.init())
    assert first.value.keep_B.all()
    assert first.value.add is None
    assert first.metrics["replay/stored"] == 6
    batch = batch_of(2, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    second = go(part, batch, first.state)
    add = second.value.add  # the one right rollout of 7; 8 has no wrong one
    assert add["rollout_uid_B"].tolist() == [10]
    assert add["uid_P"].tolist() == [7]
    both = batch.join(add)
    assert both["group_B"].tolist() == [0, 0, 0, 1, 1, 1, 0]
    rows = both["rollout_T"] == 6
    assert (both["origin_T"][rows & both["mask_T"]] == 4).all()
    assert (both["origin_T"][rows & ~both["mask_T"]] == 1).all()
    old = batch_of(1, FIRST)
    for name in ("id_T", "logp_behavior_T", "logp_sampler_T"):
        mine, theirs = both[name][rows], old[name][old["rollout_T"] == 0]
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert second.metrics["replay/drawn"] == 1
    assert second.metrics["replay/age_mean"] == 1
    assert second.metrics["replay/stored"] == 12
    third = go(part, batch_of(3, [1.0] * 6), second.state)
    assert sorted(third.value.add["outcome_B"].tolist()) == [0.0, 0.0]
    assert set(third.value.add["uid_P"].tolist()) == {7}


def test_mixed_unscored_and_unknown_groups_get_nothing():
    part = BringBackOpposites()
    state = go(part, batch_of(1, FIRST), part.init()).state
    mixed = go(part, batch_of(2, [0.0, 1.0, 0.0, 1.0, 1.0, 1.0]), state)
    assert mixed.value.add is None
    unscored = [False] * 3 + [True] * 3
    found = go(part, batch_of(2, [0.0] * 3 + [1.0] * 3, scored=unscored), state)
    assert found.value.add is None
    assert found.metrics["replay/stored"] == 9
    other = go(part, batch_of(2, [0.0] * 6, uids=(5, 6)), state)
    assert other.value.add is None
    none = go(BringBackOpposites(num_added=0), batch_of(2, [0.0] * 6), state)
    assert none.value.add is None


def test_a_model_that_can_read_it_is_asked_for_the_mistake():
    part, texts = BringBackOpposites(retry_below=0.5), Words()
    texts.ids = {letter: n for n, letter in enumerate(sorted(set("".join(WORDS)) - set("{}")))}
    state = go(part, batch_of(1, FIRST), part.init(), texts).state
    (draw,) = go(part, batch_of(2, [0.0] * 3 + [1.0] * 3), state, texts).value.ask
    assert draw.columns["prompt_ids"][:2] == (7, len(WORDS[0]))


def test_bad_prompts_are_asked_once_more_with_a_wrong_answer():
    part, texts = BringBackOpposites(retry_below=0.5), Words()
    old = batch_of(1, FIRST)
    state = go(part, old, part.init(), texts).state
    assert texts.asked == []
    batch = batch_of(2, [0.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    asking = go(part, batch, state, texts)
    (draw,) = asking.value.ask  # prompt 7: a third of its history was right; 8: all of it
    assert (draw.uid, draw.num_rollouts, draw.draw) == (7, 3, RETRY)
    assert draw.columns["prompt_ids"][:2] == (7, len(WORDS[1]))  # its letters alone are known
    wrong = [tuple(each) for each in texts.completion_ids(old)[1:3]]
    assert texts.asked[-1][1] in wrong
    # neither the right answer of the prompt nor a wrong one of the other is shown
    mixed = go(part, batch_of(1, [*FIRST[:5], 0.0]), part.init()).state
    for seed in range(8):
        go(part, batch, mixed, texts, seed)
    assert {answer for _, answer in texts.asked} == set(wrong)
    more = batch_of(2, [0.0, 0.0, 0.0], uids=(7,), draws=(RETRY,))
    whole = batch.join(more)
    done = go(part, whole, asking.state, texts)
    assert done.value.ask == ()
    assert done.value.add is None  # the group that was asked again takes nothing
    assert done.metrics["retry/groups"] == 1
    assert done.metrics["replay/stored"] == 12  # nor goes it into the store
    assert go(part, batch_of(3, FIRST), done.state, texts).value.ask != ()


def test_words_without_room_are_counted():
    part, texts = BringBackOpposites(retry_below=0.5), Words(room=1)
    state = go(part, batch_of(1, FIRST), part.init(), texts).state
    found = go(part, batch_of(2, FIRST), state, texts)
    assert found.value.ask == ()
    assert found.metrics["retry/too_long"] == 1
    assert go(BringBackOpposites(), batch_of(2, FIRST), state, texts).value.ask == ()


def test_episodes_are_not_asked_once_more():
    part = BringBackOpposites(retry_below=0.5)
    played = batch_of(1, FIRST, episodes=True)
    assert go(BringBackOpposites(), played, part.init()).metrics["replay/stored"] == 6
    with pytest.raises(UserError, match=r"set curation\.retry_below=0"):
        go(part, played, part.init())


def test_the_newest_of_every_prompt_stay():
    part, state = BringBackOpposites(capacity=4), None
    state = part.init()
    for step in (1, 2, 3):
        found = go(part, batch_of(step, FIRST), state)
        state = found.state
    assert found.metrics["replay/stored"] == 8
    assert sorted(state["columns"]["rollout_uid_B"].tolist()) == [22, 25, 30, 31, 32, 33, 34, 35]
    part, state = BringBackOpposites(capacity=0), BringBackOpposites().init()
    for step in (1, 2):
        found = go(part, batch_of(step, FIRST), state)
        state = found.state
    assert found.metrics["replay/stored"] == 12  # all


def test_rollouts_come_back_to_their_own_role_alone():
    part, role_B = BringBackOpposites(), torch.tensor([0] * 3 + [1] * 3)
    first = batch_of(1, [0.0] * 3 + [1.0] * 3, uids=(7, 7), draws=(0, 1)).set(role_B=role_B)
    state = go(part, first, part.init()).state
    again = batch_of(2, [0.0] * 3 + [1.0] * 3, uids=(7, 7), draws=(0, 1)).set(role_B=role_B)
    assert go(part, again, state).value.add is None  # what succeeded is of the other role
    other = batch_of(2, [1.0] * 3 + [0.0] * 3, uids=(7, 7), draws=(0, 1)).set(role_B=role_B)
    both = other.join(go(part, other, state).value.add)
    assert both["group_B"].tolist() == [0, 0, 0, 1, 1, 1, 0, 1]
    assert both["role_B"].tolist() == [0, 0, 0, 1, 1, 1, 0, 1]


def test_the_newest_of_every_role_stay():
    part, role_B = BringBackOpposites(capacity=2), torch.tensor([0] * 3 + [1] * 3)
    batch = batch_of(1, FIRST, uids=(7, 7), draws=(0, 1)).set(role_B=role_B)
    stored = go(part, batch, part.init()).state["columns"]
    assert sorted(stored["rollout_uid_B"].tolist()) == [11, 12, 14, 15]


def test_groups_that_were_put_off_are_not_taken_for_retries():
    part = BringBackOpposites(retry_below=0.9)
    state = go(part, batch_of(1, FIRST), part.init()).state
    asked, again = EARLIER, 2 * EARLIER + RETRY  # both are of prompt 7; one was a retry
    batch = batch_of(2, [0.0] * 6, uids=(7, 7), draws=(asked, again))
    found = go(part, batch, state)
    assert [draw.draw for draw in found.value.ask] == [asked + RETRY]
    found = go(part, batch, found.state)
    assert found.metrics["retry/groups"] == 1
    assert found.metrics["replay/stored"] == 9
    assert batch.join(found.value.add)["group_B"].tolist() == [0, 0, 0, 1, 1, 1, 0]
