"""Games of several players over a scripted engine: one rollout per seat, links, groups, limits."""

import math
import re

import pytest
import torch
from fakes.engine import TableEngine
from test_play_turns import always, play, uneven, world

from strop.environments.base import Environment, Observation
from strop.method.part import Draw
from strop.parts.rollout._episode import state_key
from strop.support.exits import Exit

DRAWS = (Draw(10, 2), Draw(11, 1, draw=3))


class Race(Environment):
    """Two players add their numbers; who reaches 3 wins. An even seed: player 0 begins, else 1."""

    roles, max_turns, max_tokens = (0, 1), 3, 2

    def reset(self, seed):
        self.sum, self.player = 0, seed % 2
        return Observation("ab", state=f"{self.player} at 0", role=self.player)

    def step(self, action):
        number = int(action[0]) if action else 0
        self.sum += number
        mover, self.player = self.player, 1 - self.player
        worth = [0.0, 0.0]
        if self.sum >= 3:
            worth[mover], worth[1 - mover] = 1.0, -1.0
            return Observation("", done=True, rewards=tuple(worth))
        worth[mover] = number / 8
        text = "abcd"[max(self.sum - 1, 0) : self.sum + 1]
        return Observation(text, state=f"{self.player} at {self.sum}", valid=number > 0,
                           role=self.player, rewards=tuple(worth))  # fmt: skip


def table(kind=Race, context=1000):
    """Services that also show a 6 before the first text to those who do not begin."""
    return world(kind, context, first=(6,))


def test_a_rollout_a_seat():
    """Everyone writes `1 end`: 1, 2, and the third action, of the beginner again, wins."""
    batch = play(always(1, 0), table(), DRAWS)
    # The beginner sees ab, then (at 2) bc; the other one (at 1) ab after its opening's 6.
    beginner, other = [3, 4, 1, 0, 4, 5, 1, 0], [6, 3, 4, 1, 0]
    assert batch["player_B"].tolist() == [0, 0, 1, 1, 0, 1]
    assert batch["role_B"].tolist() == [0, 0, 1, 1, 0, 1]
    # uid 10 begins with player 0, uid 11 with player 1
    assert batch["id_T"].tolist() == beginner * 2 + other * 2 + other + beginner
    assert batch["mask_T"].tolist() == [
        t < 3 and not (i == 0 and t == 6) for i, t in enumerate(batch["id_T"].tolist())
    ]
    assert batch["rollout_K"].tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 5]
    assert batch["index_K"].tolist() == [0, 1, 0, 1, 0, 0, 0, 0, 1]
    assert batch["role_K"].tolist() == [0, 0, 0, 0, 1, 1, 0, 1, 1]
    assert batch["reward_K"].tolist() == [0.125, 1, 0.125, 1, -0.875, -0.875, -0.875, 0.125, 1]
    assert batch["done_K"].tolist() == [False, True, False, True, True, True, True, False, True]
    assert batch["state_K"][4] == state_key("1 at 1")
    # Groups: a prompt and a role; draws 0 and 3 of two roles.
    assert batch["group_B"].tolist() == [0, 0, 1, 1, 2, 3]
    assert batch["uid_P"].tolist() == [10, 10, 11, 11]
    assert batch["draw_P"].tolist() == [0, 1, 6, 7]


def test_seats_of_an_episode_are_linked():
    services = table()
    batch = play(always(1, 0), services, DRAWS)
    uids, episodes = batch["rollout_uid_B"].tolist(), batch["episode_B"].tolist()
    assert len(set(uids)) == 6
    # Rows 0 and 2, 1 and 3, 4 and 5 are one game each; its name is the beginner's uid.
    assert episodes == [uids[0], uids[1], uids[0], uids[1], uids[5], uids[5]]
    assert services.log.logged["episode"] == dict(zip(uids, episodes, strict=True))
    assert services.log.logged["player"] == dict(zip(uids, [0, 0, 1, 1, 0, 1], strict=True))
    assert services.log.logged["turns"][uids[2]] == [
        {"observation": "ab", "action": "1", "reward": -0.875, "valid": True}
    ]


def test_a_player_never_sees_what_another_one_did():
    """No token of a seat comes from the other seat's actions or texts."""
    batch = play(TableEngine(uneven), table(), (Draw(10, 30), Draw(11, 30)))
    for b in range(batch.size("B")):
        own_T = batch["rollout_T"] == b
        actions = batch["id_T"][own_T & batch["mask_T"]].tolist()
        said = batch["id_T"][own_T & ~batch["mask_T"]].tolist()
        assert set(actions) <= {0, 1, 2}
        assert set(said) <= {3, 4, 5, 6}


@pytest.mark.parametrize("num_slots", [None, 2])
def test_turns_that_go_on_from_a_cache_and_others_are_the_same(num_slots, find_caches):
    many = tuple(Draw(uid, 8) for uid in (10, 11))
    sources = find_caches(True)
    held = play(TableEngine(uneven, num_slots=num_slots), table(), many)
    assert any(sources)
    find_caches(False)
    anew = play(TableEngine(uneven, num_slots=num_slots), table(), many)
    for name, column in held.columns.items():
        assert column.equal(anew[name]), name
    assert held.size("K") > 1.2 * held.size("B")


def test_log_probabilities_are_those_of_the_seat_alone():
    batch = play(TableEngine(uneven), table(), (Draw(10, 8),))
    for b in range(batch.size("B")):
        rows = (batch["rollout_T"] == b).nonzero()[:, 0].tolist()
        ids = batch["id_T"][rows].tolist()
        for place, row in enumerate(rows):
            if batch["mask_T"][row]:
                expected = math.log(uneven(tuple(ids[:place]))[ids[place]])
                assert batch["logp_behavior_T"][row].item() == pytest.approx(expected, abs=1e-6)


def test_two_seats_draw_their_own_numbers():
    """In the same place after equal texts the two players still differ now and then."""

    class Alike(Race):
        def step(self, action):
            answer = super().step(action)
            return Observation("ab", 0.0, len(action) < 0, role=answer.role, state="")

    batch = play(TableEngine(uneven), world(Alike), (Draw(10, 40),), max_turns=1)
    first = [batch["id_T"][batch["rollout_T"] == b][2].item() for b in range(80)]
    assert 5 < sum(a != b for a, b in zip(first[:40], first[40:], strict=True)) < 40


def test_a_limit_cuts_the_game_for_all():
    """Nobody adds anything: each has the two turns that the limit grants."""
    batch = play(always(0), table(), (Draw(10, 1),), max_turns=2)
    assert batch["index_K"].tolist() == [0, 1, 0, 1]
    assert batch["truncated_B"].tolist() == [True, True]
    assert not batch["done_K"].any()


def test_who_never_acted_has_no_rollout():
    class Short(Race):
        def step(self, action):
            return Observation("", done=True, rewards=(0.5, 7.0))

    batch = play(always(1, 0), table(Short), DRAWS)
    assert batch["player_B"].tolist() == [0, 0, 1]
    assert batch["reward_K"].tolist() == [0.5, 0.5, 7.0]
    assert batch["draw_P"].tolist() == [0, 7]
    # ab, 1 end, and no room for the other one's opening and action
    batch = play(always(1, 0), table(context=5), (Draw(10, 1),))
    assert batch["player_B"].tolist() == [0, 1]
    batch = play(always(1, 0), table(context=3), (Draw(10, 1),))
    assert batch["player_B"].tolist() == [0]
    assert batch["truncated_B"].tolist() == [True]


def test_players_of_one_role_form_one_group():
    class Team(Race):
        """An attacker begins, two defenders follow."""

        roles = (0, 1, 1)

        def reset(self, seed):
            self.turn = 0
            return Observation("ab", role=0)

        def step(self, action):
            self.turn += 1
            done = self.turn == 3
            return Observation("cd", done=done, role=self.turn % 3, rewards=(0.0, 1.0, 2.0))

    batch = play(always(1, 0), table(Team), (Draw(10, 2),))
    assert batch["group_B"].tolist() == [0, 0, 1, 1, 1, 1]
    assert batch["player_B"].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch["role_B"].tolist() == [0, 0, 1, 1, 1, 1]
    assert batch["role_K"].tolist() == [0, 0, 1, 1, 1, 1]
    # Rewards before a player's first action are in no rollout.
    assert batch["reward_K"].tolist() == [0, 0, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (Observation("a", role=2), "gave the turn to player 2 of 2"),
        (Observation("a", role=-1), "gave the turn to player -1 of 2"),
        (Observation("a", rewards=(1.0,)), "gave 1 rewards to 2 players"),
        (Observation("a", rewards=(1.0, float("inf"))), r"gave the reward \(1.0, inf\)"),
    ],
)
def test_wrong_players_and_rewards_end_the_episode(observation, message):
    class Wrong(Race):
        def step(self, action):
            return observation

    services = table(Wrong)
    batch = play(always(1, 0), services, (Draw(10, 1),))
    assert batch["exit_B"].tolist() == [Exit.ENVIRONMENT_CRASH]
    (why,) = services.log.logged["exit_why"].values()
    assert re.search(message, why)


def test_one_player_keeps_its_labels():
    """Without `roles` an observation's role is a label and all turns are one rollout."""

    class Labelled(Race):
        roles = ()

        def step(self, action):
            answer = super().step(action)
            return Observation(answer.text, 1.0, answer.done, role=answer.role)

    batch = play(always(1, 0), world(Labelled), (Draw(10, 1),))
    assert batch["role_K"].tolist() == [0, 1, 0]
    assert batch["player_B"].tolist() == batch["role_B"].tolist() == [0]
    assert batch["episode_B"].equal(batch["rollout_uid_B"])
    assert batch["reward_K"].tolist() == [1, 1, 1]
    assert torch.equal(batch["draw_P"], torch.tensor([0]))
