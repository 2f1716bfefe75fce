"""Episodes over a scripted engine: exact tables, forks and submissions, limits, chat templates."""

import math
from types import SimpleNamespace

import pytest
import torch
from fakes.engine import TableEngine
from fakes.services import FakeEpisodes, FakeSampling, FakeServices, FakeTexts, rolled_out
from models import tokenizer

from strop.data.observation_tokens import known_ids, observation_ids
from strop.environments.base import Environment, Observation
from strop.method.part import Draw
from strop.parts.rollout._episode import SeatLimits, state_key
from strop.parts.rollout.branch_after_turns import BranchAfterTurns
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.retry_from_reflection import RetryFromReflection
from strop.parts.rollout.rewrite_failed_turns import RewriteFailedTurns
from strop.support.errors import UserError
from strop.support.exits import Exit

# Tokens: 0 ends an action, 1 and 2 are actions, 3 to 6 are what the environment shows.
DRAWS = (Draw(10, 2), Draw(11, 1))


class Steps(Environment):
    """Counts up by the action's number; done at 3 or more; a 0 is not understood."""

    max_turns, max_tokens = 4, 2

    def reset(self, seed):
        self.sum = seed - 10
        return Observation("ab", state=f"at {self.sum}", role=1)

    def step(self, action):
        number = int(action[0]) if action else 0
        self.sum += number
        done = self.sum >= 3
        return Observation(
            "" if done else "cd"[: self.sum], reward=number / 2, done=done,
            state=f"at {self.sum}", valid=number > 0, role=self.sum % 2,
        )  # fmt: skip


LETTERS = {letter: 3 + n for n, letter in enumerate("abcd")}


def world(kind=Steps, context=1000, first=(), letters=LETTERS):
    """The services of a run, by hand."""
    return FakeServices(
        FakeTexts(dict.fromkeys((10, 11, 12), (3, 4))),
        sampling=FakeSampling(context_tokens=context),
        episodes=FakeEpisodes(kind, letters, first=first),
    )


def always(*script):
    """An engine that writes the script's token at each place of an action, whatever came before."""

    def probabilities(tokens):
        wanted = script[len([t for t in tokens if t < 3]) % len(script)]
        return [float(t == wanted) for t in range(7)]

    return TableEngine(probabilities)


def play(engine, services=None, draws=DRAWS, seed=0, **fields):
    services = services or world()
    part, rng = PlayTurns(**fields), torch.Generator().manual_seed(seed)
    answer, episode = part.new_tokens(0, services.episodes.kind)
    services.sampling.answer_tokens, services.sampling.episode_tokens = answer, episode
    batch, state, *_ = rolled_out(part, draws, engine, services, rng)
    assert state is None
    return batch


def test_exact_tables():
    """Actions are `1 end`, `2 end`, `1 end`, ... Episodes begin at 0, 0 and 1."""
    services = world()
    batch = play(always(1, 0, 2, 0), services)
    # from 0: 1 -> at 1 (shows c), 2 -> done. From 1: 1 -> at 2 (shows cd), 2 -> done
    one, other = [3, 4, 1, 0, 5, 2, 0], [3, 4, 1, 0, 5, 6, 2, 0]
    assert batch["id_T"].tolist() == one * 2 + other
    assert batch["mask_T"].int().tolist() == [0, 0, 1, 1, 0, 1, 1] * 2 + [0, 0, 1, 1, 0, 0, 1, 1]
    assert batch["origin_T"].equal(1 - batch["mask_T"].long())
    assert batch["turn_T"].tolist() == [
        *[0, 0, 0, 0, 1, 1, 1], *[2, 2, 2, 2, 3, 3, 3], *[4, 4, 4, 4, 5, 5, 5, 5]
    ]  # fmt: skip
    assert batch["rollout_K"].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch["index_K"].tolist() == [0, 1] * 3
    assert batch["reward_K"].tolist() == [0.5, 1.0] * 3
    assert batch["done_K"].tolist() == [False, True] * 3
    assert batch["valid_K"].all()
    assert batch["role_K"].tolist() == [1, 1, 1, 1, 1, 0]
    places = [0, 1, 0, 1, 1, 2]
    assert batch["state_K"].tolist() == [state_key(f"at {place}") for place in places]
    assert batch["group_B"].tolist() == [0, 0, 1]
    assert batch["uid_P"].tolist() == [10, 11]
    assert not batch["truncated_B"].any()
    assert len(set(batch["rollout_uid_B"].tolist())) == 3
    assert batch["length_B"].tolist() == [4, 4, 4]
    assert services.log.logged["turns"][batch["rollout_uid_B"][2].item()] == [
        {"observation": "ab", "action": "1", "reward": 0.5, "valid": True},
        {"observation": "cd", "action": "2", "reward": 1.0, "valid": True},
    ]


@pytest.mark.parametrize("rewrites", [False, True])
def test_actions_of_one_episode_are_drawn_independently(rewrites):
    """Also where each turn is a context of its own, whose positions begin anew."""

    class Again(Environment):
        max_turns, max_tokens = 3, 1

        def reset(self, seed):
            self.left = 3
            return Observation("ab")

        def step(self, action):
            self.left -= 1
            return Observation("ab", done=self.left == 0)

    Again.rewrites = rewrites
    coin = TableEngine(lambda tokens: [0, 0.5, 0.5, 0, 0, 0, 0])
    batch = play(coin, world(Again), draws=(Draw(10, 400),))
    action_BK = batch["id_T"][batch["mask_T"]].view(400, 3)
    kinds, count = action_BK.unique(dim=0, return_counts=True)
    assert len(kinds) == 8
    assert ((count - 50) ** 2 / 50).sum() < 24.3  # chi-square of 7, 1 in 1,000


class Failing(Steps):
    """Of seed 10 it cannot begin, of seed 11 it raises at the second action, 12 is done."""

    def reset(self, seed):
        self.seed = seed
        if seed == 10:
            raise OSError("no room")
        return super().reset(seed)

    def step(self, action):
        if self.seed == 11 and self.sum > 1:
            raise ValueError("broken")
        return super().step(action)


@pytest.mark.parametrize("kind", [PlayTurns, RewriteFailedTurns, BranchAfterTurns])
def test_an_episode_that_fails_is_lost_with_its_cause(kind):
    services = world(Failing)
    services.texts.pieces = dict(enumerate("abcdefg"))
    services.sampling.answer_tokens, services.sampling.episode_tokens = 2, 8
    draws = (Draw(10, 2), Draw(11, 1), Draw(12, 1))
    batch, *_ = rolled_out(
        kind(), draws, always(1, 0), services, torch.Generator().manual_seed(0)
    )  # fmt: skip
    crash, start = Exit.ENVIRONMENT_CRASH, Exit.START_FAILED
    assert batch["exit_B"].tolist() == [start, start, crash, Exit.DONE]
    assert batch["length_B"].tolist() == [0, 0, 4, 2]
    assert batch["done_K"].tolist() == [False, False, False, False, True]
    uid = batch["rollout_uid_B"].tolist()
    assert "OSError: no room" in services.log.logged["exit_why"][uid[0]]
    assert "ValueError: broken" in services.log.logged["exit_why"][uid[2]]


def uneven(tokens):
    """Every token likely, depending on all before it."""
    weights = [1 + (sum(tokens) * 7 + len(tokens) * (t + 3)) % 5 for t in range(3)] + [0.0] * 4
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize("num_slots", [None, 2])
def test_turns_that_go_on_from_a_cache_and_others_are_the_same(num_slots, find_caches):
    many = tuple(Draw(uid, 6) for uid in (10, 11, 12))
    sources = find_caches(True)
    held = play(TableEngine(uneven, num_slots=num_slots), world(), many)
    assert sum(source is not None for source in sources) == held.size("K") - held.size("B")
    find_caches(False)
    anew = play(TableEngine(uneven, num_slots=num_slots), world(), many)
    assert held.columns.keys() == anew.columns.keys()
    for name, column in held.columns.items():
        assert column.equal(anew[name]), name
    assert held.size("K") > 1.5 * held.size("B")


def test_log_probabilities_are_those_of_the_whole_sequence():
    batch = play(TableEngine(uneven), draws=(Draw(10, 8),))
    for b in range(8):
        rows = (batch["rollout_T"] == b).nonzero()[:, 0].tolist()
        ids = batch["id_T"][rows].tolist()
        for place, row in enumerate(rows):
            expected = (
                math.log(uneven(tuple(ids[:place]))[ids[place]]) if batch["mask_T"][row] else 0
            )
            assert batch["logp_behavior_T"][row].item() == pytest.approx(expected, abs=1e-6)
            assert batch["logp_sampler_T"][row].item() == pytest.approx(expected, abs=1e-6)


def test_same_seed_same_rollouts():
    one, two, other = (play(TableEngine(uneven), seed=seed) for seed in (3, 3, 4))
    assert all(column.equal(two[name]) for name, column in one.columns.items())
    assert not one["rollout_uid_B"].equal(other["rollout_uid_B"])


def test_rewards_after_a_cut_action_and_a_wrong_one():
    """`1 1` is cut at two tokens and read as 1; an end at once is the empty action."""
    batch = play(always(1, 1, 0), draws=(Draw(10, 1),))
    actions = torch.split(batch["id_T"][batch["mask_T"]], [2, 1, 2, 1])
    assert [a.tolist() for a in actions] == [[1, 1], [0], [1, 1], [0]]
    assert batch["valid_K"].tolist() == [True, False, True, False]
    assert batch["reward_K"].tolist() == [0.5, 0, 0.5, 0]
    assert batch["truncated_B"].tolist() == [True]  # four turns, at 2
    assert not batch["done_K"].any()


@pytest.mark.parametrize(
    ("fields", "context", "actions"),
    [
        ({"max_turns": 3}, 100, [[1, 0], [0], [0]]),
        ({"max_tokens": 3}, 100, [[1, 0], [0]]),
        ({"max_action_tokens": 1}, 100, [[1], [0], [0], [0]]),  # four turns is the environment's
        ({}, 6, [[1, 0], [0]]),  # prompt 2, action 2, observation 1: room for one token
        ({}, 5, [[1, 0]]),
    ],
)
def test_limits_cut_an_episode(fields, context, actions):
    batch = play(always(1, 0, 0, 0), world(context=context), (Draw(10, 1),), **fields)
    pieces = torch.split(batch["id_T"][batch["mask_T"]], [len(action) for action in actions])
    assert [piece.tolist() for piece in pieces] == actions
    assert batch.size("K") == len(actions)
    assert batch["truncated_B"].tolist() == [True]
    assert not batch["done_K"].any()
    used_up = len(actions) == fields.get("max_turns", 4)
    assert batch["exit_B"].tolist() == [Exit.TURN_LIMIT if used_up else Exit.TOKEN_LIMIT]


def test_a_draw_may_carry_a_limit_of_its_own():
    """Never one above the environment's; reminders tell it."""
    own = {"max_turns": 2}
    draws = (Draw(10, 2, own), Draw(10, 1, own, draw=1), Draw(11, 1), Draw(12, 1, {"max_turns": 9}))
    services = world(letters=LETTERS | {"1": LETTERS["c"], "2": LETTERS["d"]})
    batch = play(always(0), services, draws, max_turns=3, reminder="{left}")
    assert torch.bincount(batch["rollout_K"]).tolist() == [2, 2, 2, 3, 3]
    assert batch["exit_B"].tolist() == [Exit.TURN_LIMIT] * 5
    logged = services.log.logged["turns"]
    shown = [logged[uid][1]["observation"][-1] for uid in batch["rollout_uid_B"].tolist()]
    assert shown == ["1", "1", "1", "2", "2"]


@pytest.mark.parametrize("kind", [RewriteFailedTurns, BranchAfterTurns, RetryFromReflection])
def test_every_strategy_of_episodes_keeps_to_the_limit_of_a_draw(kind):
    draws = (Draw(10, 2, {"max_turns": 2}), Draw(12, 1, {"max_turns": 9}))
    services = world(letters=LETTERS | {"?": LETTERS["c"]})
    services.texts.pieces = dict(enumerate("abcdefg"))
    services.sampling.answer_tokens, services.sampling.episode_tokens = 2, 8
    options = {"ask": "?"} if kind is RetryFromReflection else {}
    batch, *_ = rolled_out(
        kind(max_turns=3, **options), draws, always(0), services, torch.Generator().manual_seed(0)
    )
    assert torch.bincount(batch["rollout_K"])[:3].tolist() == [2, 2, 3]


def test_an_environment_may_cut_itself_and_done_wins():
    class Cut(Steps):
        def step(self, action):
            answer = super().step(action)
            return Observation(answer.text, answer.reward, answer.done, truncated=True)

    batch = play(always(1, 0, 2, 0), world(Cut))
    assert batch["truncated_B"].tolist() == [True, True, True]
    done = play(always(2, 0), world(Cut), (Draw(12, 1),))
    assert done["done_K"].tolist() == [True]
    assert done["truncated_B"].tolist() == [False]


def test_without_a_state_the_whole_history_is_the_state():
    class Blind(Steps):
        def step(self, action):
            answer = super().step(action)
            return Observation("c", answer.reward, answer.done)

        def reset(self, seed):
            super().reset(seed)
            return Observation("ab")

    batch = play(TableEngine(uneven), world(Blind), (Draw(10, 40),))
    histories = {}
    for b in range(40):
        for k in (batch["rollout_K"] == b).nonzero()[:, 0].tolist():
            until = (batch["rollout_T"] == b) & (
                (batch["turn_T"] < k) | ((batch["turn_T"] == k) & ~batch["mask_T"])
            )
            # the ending token is not part of the action's text
            key = tuple(i for i in batch["id_T"][until].tolist() if i != 0)
            histories.setdefault(key, set()).add(batch["state_K"][k].item())
    assert len(histories) > 5
    assert all(len(keys) == 1 for keys in histories.values())
    assert len(set.union(*histories.values())) == len(histories)


@pytest.mark.parametrize("name", ["max_turns", "max_action_tokens", "top_k"])
def test_fields_are_checked(name):
    with pytest.raises(UserError, match=f"play_turns.{name} must be at least 0"):
        PlayTurns(**{name: -1})


CHAT = (
    "{% for m in messages %}({{ m.role[0:1] == 'u' and '1' or '2' }}:{{ m.content }})\n{% endfor %}"
    "{% if add_generation_prompt %}(2:{% endif %}"
)


def test_observations_in_a_chat():
    ours = tokenizer()
    ours.chat_template = CHAT
    text = ours.decode
    # the answer ends with the template's `)`, or was cut, or ended with another token
    end = ours.convert_tokens_to_ids(")")
    assert text(observation_ids(ours, " 7+7 \n", True, end)) == "\n(1:7+7)\n(2:"
    cut = ours.convert_tokens_to_ids("7")
    assert text(observation_ids(ours, "8", True, cut)) == ")\n(1:8)\n(2:"
    assert text(observation_ids(ours, "8", True, ours.eos_token_id)) == ")\n(1:8)\n(2:"
    assert text(observation_ids(ours, "8", False, end)) == "8"
    whole = ours.apply_chat_template(
        [{"role": "user", "content": "0"}, {"role": "assistant", "content": "5"},
         {"role": "user", "content": "7+7"}], tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    first = ours.apply_chat_template(
        [{"role": "user", "content": "0"}], tokenize=False, add_generation_prompt=True
    )
    assert first + "5)" + text(observation_ids(ours, "7+7", True, end)) == whole
    ours.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(UserError, match="does not show an assistant's earlier answer"):
        observation_ids(ours, "7", True, end)


def test_unknown_characters_are_refused():
    advice = r"'a', 'b', 'c' in '1a2bc'; it knows .*most built-in environments do .*style: compact"
    with pytest.raises(UserError, match=advice):
        known_ids(tokenizer(), "1a2bc")


def test_reminders_say_how_many_turns_are_left():
    """The digits 1 and 2 are the tokens of `c` and `d` here."""
    letters = LETTERS | {"1": LETTERS["c"], "2": LETTERS["d"]}
    # From 10 on: every action adds 0, so the episode uses all its turns.
    told, some = world(letters=letters), world(letters=letters)
    batch = play(always(0), told, (Draw(10, 1),), max_turns=3, reminder="{left}")
    said = [turn["observation"] for turn in told.log.logged["turns"][batch["rollout_uid_B"].item()]]
    assert said == ["ab", "2", "1"]
    assert batch["id_T"].tolist() == [3, 4, 0, 6, 0, 5, 0]
    assert batch["truncated_B"].tolist() == [True]
    play(always(0), some, (Draw(10, 1),), max_turns=3, reminder="{left}", reminder_turns=(3,))
    assert [turn["observation"] for turn in next(iter(some.log.logged["turns"].values()))] == [
        "ab",
        "",
        "1",
    ]


def test_an_extension_is_granted_once_to_episodes_that_are_not_over():
    """Half the weight of an action each turn: from 10, `1` three times is done at 3."""
    draws = (Draw(10, 1), Draw(12, 1))
    short = play(always(1, 0), draws=draws, max_turns=2)
    assert short["truncated_B"].tolist() == [True, False]
    longer = play(always(1, 0), draws=draws, max_turns=2, extension=1)
    assert longer["truncated_B"].tolist() == [False, False]
    assert longer["index_K"].tolist() == [0, 1, 2, 0]
    part = PlayTurns(max_turns=2, extension=3)
    assert (part.turns(9), part.new_tokens(0, SimpleNamespace(max_turns=9, max_tokens=4))) == (
        5, (4, 20)
    )  # fmt: skip
    limits = SeatLimits.of(FakeSampling(answer_tokens=4, episode_tokens=20), part.turns(9), 3)
    assert (limits.turns, limits.episode_tokens) == (5, 20)
    assert [limits.left(played) for played in range(6)] == [2, 1, 3, 2, 1, 0]


def test_turns_of_reminders_are_counted_from_1():
    with pytest.raises(UserError, match="counted from 1"):
        PlayTurns(reminder_turns=(0,))
