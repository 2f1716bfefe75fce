"""Trees of episodes over a table: which rollout continues which, and the contents of each."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from turns_table import (
    PIECES,
    TABLE,
    Walk,
    assert_drawn_by_its_own_seed,
    assert_log_probabilities,
    played,
    services_over,
    turns_of,
)

from strop.engines.base import Event
from strop.environments.base import Observation
from strop.method.part import Draw
from strop.parts.rollout import substitutes
from strop.parts.rollout._episode import state_key
from strop.parts.rollout._turn_trees import turn_entropy
from strop.parts.rollout.branch_after_turns import BranchAfterTurns, started_of
from strop.parts.rollout.play_turns import PlayTurns
from strop.support.errors import RunStopped, UserError
from strop.support.exits import Exit

DRAWS = (Draw(4, 6), Draw(5, 3), Draw(6, 9))
BASE = {"initial": 2, "branching": (3, 0.8, 0.5), "penalty": 0.3}


def entropy(context, action):
    """Of a turn, by the table: all tokens are among the ten likeliest."""
    total, last = 0.0, context
    for token in action[:20]:
        total -= sum(p * math.log(p) for p in TABLE[last] if p)
        last = token
    return total / math.log(len(PIECES))


def predicted(batch, first, draw, mine, part, started=None):
    """Parents and forks of a draw's rollouts, by the rule, from their turns and the same coins."""
    rng = torch.Generator().manual_seed(mine)
    beam, weight, level = part.branching
    rows = [(-1, -1, 0)] * (started or min(part.initial, draw.num_rollouts))  # parent, fork, turn
    playing, streak, first_of = dict(enumerate([0] * len(rows))), 0, {}
    while playing:
        after, new = {}, []
        rise = {}
        for place, turn in playing.items():
            turns = turns_of(batch, first + place)
            now = entropy(turns[turn][0][-1], turns[turn][1])
            rise[place] = now - first_of.setdefault(place, now)
            if turn + 1 < len(turns):
                after[place] = turn + 1
        for place in sorted(after):
            for _ in range(beam - 1):
                if len(rows) + len(new) < draw.num_rollouts:
                    u = float(torch.rand((), generator=rng, dtype=torch.float64))
                    chance = (u + weight * rise[place]) * max(0, 1 - part.penalty * streak)
                    if min(max(chance, 0), 1) >= level:
                        taken = turns_of(batch, first + place)[: after[place]]
                        new.append((place, sum(len(a) for _, a in taken), after[place]))
        if not after and len(rows) < draw.num_rollouts:
            new.append((-1, -1, 0))
        streak = streak + 1 if new else 0
        for one in new:
            after[len(rows)] = one[2]
            rows.append(one)
        playing = after
    return rows


def coins(draws, seed):
    """The seeds of the draws' coins, as the strategy takes them from its generator."""
    rng = torch.Generator().manual_seed(seed)
    torch.randint(2**62, (sum(draw.num_rollouts for draw in draws), 1), generator=rng)
    return torch.randint(2**62, (len(draws), 3), generator=rng)[:, 0].tolist()


def assert_a_tree(batch, draws, part, seed, started=None):
    """Parents, places and tokens of every rollout are those of the rule and of the table."""
    first = 0
    for number, (draw, mine) in enumerate(zip(draws, coins(draws, seed), strict=True)):
        own = slice(first, first + draw.num_rollouts)
        rows = predicted(batch, first, draw, mine, part, started and started[number])
        parents = [p + first if p >= 0 else -1 for p, _, _ in rows]
        assert batch["parent_B"][own].tolist() == parents
        assert batch["fork_at_B"][own].tolist() == [fork for _, fork, _ in rows]
        assert batch["group_B"][own].tolist() == [number] * draw.num_rollouts
        for row, (parent, (_, _, turn)) in enumerate(zip(parents, rows, strict=True), start=first):
            turns = turns_of(batch, row)
            if parent >= 0:
                assert turns[:turn] == turns_of(batch, parent)[:turn]
                assert turns[turn][0] == turns_of(batch, parent)[turn][0]
            assert_drawn_by_its_own_seed(batch, row, turns=range(turn, len(turns)))
            assert_log_probabilities(batch, row)
        first += draw.num_rollouts
    assert first == batch.size("B")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_the_tree_is_that_of_the_rule(seed, penalty):
    part = BranchAfterTurns(**{**BASE, "penalty": penalty})
    (batch, _, thrown, told), services = played(part, DRAWS, seed=seed)
    assert_a_tree(batch, DRAWS, part, seed)
    assert thrown == 0
    assert (batch["parent_B"] >= 0).sum() >= 4
    assert told["rollout/begun"] == int((batch["parent_B"] == -1).sum()) / 3
    assert told["rollout/tokens_shared"] == int(batch["fork_at_B"].clamp(min=0).sum())
    # rewards and states are those of the rollout's own episode
    for row in range(batch.size("B")):
        total = int(batch["uid_P"][batch["group_B"][row]]) % 2
        for turn, (_, action) in zip(
            (batch["rollout_K"] == row).nonzero().squeeze(1).tolist(), turns_of(batch, row),
            strict=True,
        ):  # fmt: skip
            total += sum(action)
            assert batch["reward_K"][turn] == float(total >= 6)
            assert batch["valid_K"][turn] == any(action)
        said = services.log.logged["turns"][int(batch["rollout_uid_B"][row])]
        assert [len(turn["action"]) for turn in said] == [
            sum(token > 0 for token in action) for _, action in turns_of(batch, row)
        ]


@pytest.mark.parametrize("held", [True, False])
def test_the_tree_does_not_depend_on_slots_or_caches(held, find_caches):
    part, known = BranchAfterTurns(**BASE), played(BranchAfterTurns(**BASE), DRAWS)[0].batch
    sources = find_caches(held)
    engine = TableEngine(by_last_token(TABLE), num_slots=2)
    batch = played(part, DRAWS, engine)[0].batch
    assert any(sources) == held
    for name, column in known.columns.items():
        assert batch[name].equal(column), name


def test_every_turn_branches_at_level_0_and_none_above_1():
    class Three(Walk):
        def step(self, action):
            answer = super().step(action)
            return Observation("b", state=answer.state)

    services = services_over(TableEngine(by_last_token(TABLE)), Three)
    part = BranchAfterTurns(initial=1, branching=(2, 0.2, 0.0), max_turns=3)
    batch = played(part, (Draw(4, 4),), services=services)[0].batch
    # 0 goes on as 1 after its first turn; after the second both have one more, and the budget ends
    assert batch["parent_B"].tolist() == [-1, 0, 0, 1]
    sizes = [[len(action) for _, action in turns_of(batch, row)] for row in range(4)]
    expected = [-1, sizes[0][0], sum(sizes[0][:2]), sum(sizes[1][:2])]
    assert batch["fork_at_B"].tolist() == expected
    never = BranchAfterTurns(initial=1, branching=(2, 0.2, 1.1), max_turns=3)
    batch = played(never, (Draw(4, 4),), services=services)[0].batch
    assert batch["parent_B"].tolist() == [-1] * 4


def test_equals_plain_episodes_where_all_begin_at_the_prompt():
    part = BranchAfterTurns(initial=9)
    ours, theirs = played(part, DRAWS)[0], played(PlayTurns(), DRAWS)[0]
    for name, column in theirs.batch.columns.items():
        assert ours.batch[name].equal(column), name
    assert substitutes.plain(part) == PlayTurns()
    assert substitutes.plain(BranchAfterTurns(max_turns=3, temperature=0.5)) == PlayTurns(
        max_turns=3, temperature=0.5
    )


def chance(part, rise, streak=0):
    """Probability of a branch, to 1/1000, by the coins from which on there is one."""
    branch = SimpleNamespace(rise=rise)
    hits = [
        part.forks(SimpleNamespace(coin=lambda u=u: u, streak=streak), branch)
        for u in ((n + 0.5) / 1000 for n in range(1000))
    ]
    assert hits == sorted(hits)
    return sum(hits) / 1000


def test_worked_example_of_the_chance():
    part = BranchAfterTurns()
    for rise, expected in ((0.0, 0.5), (0.5, 0.6), (-1.0, 0.3), (2.5, 1.0)):
        assert chance(part, rise) == pytest.approx(expected, abs=1e-3)
    assert chance(BranchAfterTurns(branching=(2, 0.0, 0.5)), 7.0) == 0.5
    # l = 4: u has to come up to .5 / .8 = .625
    assert chance(BranchAfterTurns(penalty=0.05), 0.0, streak=4) == 0.375
    assert chance(BranchAfterTurns(penalty=0.05), 0.0, streak=20) == 0


def test_worked_example_of_the_division():
    assert started_of(16, 0.5, 0.8 - 0.4) == 9  # 16 * .5498 = 8.8
    assert started_of(16, 0.5, 0.4 - 0.8) == 8  # 16 * .4502 = 7.2
    assert started_of(16, 0.5, 100.0) == 16
    assert started_of(4, 50.0, -100.0) == 1


def test_entropy_of_a_turn_is_a_sum_over_its_first_tokens():
    even = {0: math.log(0.5), 1: math.log(0.5), 2: -math.inf}
    event = Event(0, (1,), (0.0,), 0, top=(even,))
    assert turn_entropy([event] * 3, 8) == pytest.approx(3 * math.log(2) / math.log(8))
    assert turn_entropy([event] * 30, 8) == pytest.approx(20 / 3)
    assert turn_entropy([event._replace(ended="stop", top=())], 8) == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_look_beforehand_divides_the_rollouts_and_is_thrown_away(seed):
    part = BranchAfterTurns(monitor=8.0, branching=(2, 0.8, 0.5))
    (batch, _, thrown, _), _ = played(part, DRAWS, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    torch.randint(2**62, (18, 1), generator=rng)
    seeds = torch.randint(2**62, (3, 3), generator=rng).tolist()
    started, num_looked_at = [], 0
    for draw, (_, probe, episode) in zip(DRAWS, seeds, strict=True):
        (looked,), _ = played_with(draw, probe)
        alone = played_with(draw, episode)[1]
        mean = sum(entropy(given[-1], action) for given, action in alone) / len(alone)
        started.append(started_of(draw.num_rollouts, 8.0, entropy(3, looked) - mean))
        num_looked_at += len(looked) + sum(len(action) for _, action in alone)
    assert_a_tree(batch, DRAWS, part, seed, started)
    assert thrown == num_looked_at
    assert "samples_again" in part.facts
    assert not BranchAfterTurns().facts


def played_with(draw, seed):
    """The first action behind a prompt, and the turns of an episode, of a seed."""
    engine = TableEngine(by_last_token(TABLE))
    services, total, ids, turns = services_over(engine), draw.uid % 2, [3], []
    given = [3]
    for _ in range(4):
        (found,) = services.sampling.sample([services.sampling.request(ids, 3, seed)])
        action = [id for event in found.events for id in event.ids]
        turns.append((given, action))
        total += sum(action)
        if total >= 6:
            break
        given = [4 + total % 3]
        ids += [*action, *given]
    return [turns[0][1]], turns


def test_an_episode_that_does_not_repeat_is_refused():
    counter = itertools.count()

    class Moody(Walk):
        def step(self, action):
            super().step(action)
            return Observation("bc"[next(counter) % 2])

    services = services_over(TableEngine(by_last_token(TABLE)), Moody)
    part = BranchAfterTurns(initial=1, branching=(2, 0.2, 0.0))
    with pytest.raises(RunStopped, match=r"does not repeat: .* seed 4 it showed 'b' after the fir"):
        played(part, (Draw(4, 3),), services=services)


def test_what_it_cannot_play_is_refused_before_a_step():
    class Two(Walk):
        roles = (0, 1)

    class Anew(Walk):
        rewrites = True

    part = BranchAfterTurns()
    with pytest.raises(UserError, match=r"branch_after_turns .* has several players"):
        part.new_tokens(3, Two())
    with pytest.raises(UserError, match="rewrites its context each turn"):
        part.new_tokens(3, Anew())
    assert part.needs == {"top"}
    for wrong, said in (
        ({"initial": 0}, "initial must be at least 1"),
        ({"penalty": 1.5}, "penalty must be between 0"),
        ({"branching": (0, 0.2, 0.5)}, "beam at least 1"),
    ):
        with pytest.raises(UserError, match=said):
            BranchAfterTurns(**wrong)


@pytest.mark.parametrize("passing", [True, False])
@pytest.mark.parametrize("monitor", [0.0, 8.0])
def test_an_episode_that_cannot_start_fails_its_own_group_alone(passing, monitor):
    tried = []

    class Failing(Walk):
        def reset(self, seed):
            tried.append(seed)
            if seed == 4 and (not passing or tried.count(4) == 1):
                raise ValueError("no room")
            return super().reset(seed)

    services = services_over(TableEngine(by_last_token(TABLE)), Failing)
    batch = played(BranchAfterTurns(initial=2, monitor=monitor), DRAWS, services=services)[0].batch
    uid_B = batch["uid_P"][batch["group_B"]]
    assert uid_B.tolist() == [4] * 6 + [5] * 3 + [6] * 9
    assert (batch["exit_B"] == Exit.START_FAILED).equal(uid_B == 4)
    for row in range(6, 18):
        turn = (batch["rollout_K"] == row).nonzero()[0]
        assert batch["state_K"][turn] == state_key(f"at {uid_B[row] % 2}")
