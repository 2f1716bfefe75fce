"""Reflections and retries over a table: rows, prefixes, masks, log-probabilities, rewards."""

import dataclasses
import json

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from turns_table import (
    LETTERS,
    PIECES,
    TABLE,
    Walk,
    assert_log_probabilities,
    drawn,
    played,
    services_over,
    turns_of,
)

from strop.method.part import Draw
from strop.parts.rollout._reflections import BASE, GUIDED, OWN_GROUP, REFLECTION, RETRY, read_report
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.retry_from_reflection import RetryFromReflection
from strop.support.errors import UserError
from strop.support.exits import Exit

# Token 7 requests a reflection, which is token 1 or 2, or nothing; as text "1" or "2".
ASKING = {**{t: (*p, 0, 0) for t, p in TABLE.items()}, 7: (0.2, 0.5, 0.3, 0, 0, 0, 0, 0, 0),
          8: (0.1, 0.2, 0.7, 0, 0, 0, 0, 0, 0)}  # fmt: skip
KNOWN = {**LETTERS, "?": 7, "!": 8, "1": 1, "2": 2}
DRAWS = (Draw(4, 5), Draw(5, 6), Draw(6, 4))
PART = RetryFromReflection(ask="?", guide="!{report}{text}", reflection_tokens=2)


def tried(part=PART, draws=DRAWS, seed=0, context=100, kind=Walk):
    engine = TableEngine(by_last_token(ASKING))
    pieces = {**PIECES, 7: "?", 8: "!"}
    services = services_over(engine, kind, KNOWN, pieces, context)
    return played(part, draws, engine, services, seed)


def rows(batch, stage):
    return (batch["stage_B"] == stage).nonzero().squeeze(1).tolist()


def flat(turns):
    return [id for given, action in turns for id in (*given, *action)]


def expected_reflection(batch, row, seed):
    """What the table says behind an episode."""
    ids = (*flat(turns_of(batch, row)), 7)
    return drawn(ASKING, 2, ids=ids, seed=seed)


def earned(batch, row):
    return float(batch["reward_K"][batch["rollout_K"] == row].sum())


def seeds_of(draws, seed):
    rng = torch.Generator().manual_seed(seed)
    number = sum(draw.num_rollouts for draw in draws)
    torch.randint(2**62, (number, 1), generator=rng)
    return torch.randint(2**62, (number, 3), generator=rng).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_every_row_is_that_of_the_table(seed):
    (batch, _, thrown, told), services = tried(seed=seed)
    base = rows(batch, BASE)
    plain = played(PlayTurns(), DRAWS, seed=seed)[0].batch
    kept = batch.keep(batch["stage_B"] == BASE)
    for name in plain.columns:
        if name not in ("group_B", "uid_P", "draw_P", "parent_B", "fork_at_B", "turn_T",
                        "rollout_K"):  # fmt: skip
            assert kept[name].equal(plain[name]), name
    better, num_thrown, valid, retries, asked_behind, told_behind = 0, 0, 0, [], [], []
    for row, (asked, retried, name) in zip(base, seeds_of(DRAWS, seed), strict=True):
        reflection = expected_reflection(batch, row, asked)
        found = [token for token in reflection if token][:2]
        turns = turns_of(batch, row)
        uids = batch["rollout_uid_B"].tolist()
        turn = int("".join(map(str, found))) if found else len(turns)
        asked_behind.append(("?", flat(turns)[-1]))
        valid += turn < len(turns)
        if turn >= len(turns):
            assert not {asked, retried, name} & set(uids)
            num_thrown += len(reflection)
            continue
        again = uids.index(name)
        retries.append(again)
        begin = [len(action) for _, action in turns[:turn]]
        assert int(batch["stage_B"][again]) == RETRY
        assert int(batch["parent_B"][again]) == row
        assert int(batch["fork_at_B"][again]) == sum(begin)
        assert int(batch["group_B"][again]) == int(batch["group_B"][row])
        mine = turns_of(batch, again)
        assert mine[:turn] == turns[:turn]
        assert mine[turn][0] == turns[turn][0]  # without the guide
        # its actions were drawn behind the guide, by the retry's own seed
        ids = [*flat(turns[:turn]), 8, *found, *turns[turn][0]]
        if turn == 0:
            ids = [3, 8, *found]
        else:
            told_behind.append(flat(turns[:turn])[-1])
        for given, action in [([], mine[turn][1]), *mine[turn + 1 :]]:
            ids += given
            assert drawn(ASKING, 3, ids=tuple(ids), seed=retried) == action
            ids += action
        size = int(batch["length_B"][again])
        assert_log_probabilities(batch, again, ASKING, void=range(sum(begin), size))
        # R' and what is made of it
        one, two = earned(batch, row), earned(batch, again)
        is_better = two >= 1 and (two > one or (one >= 1 and len(mine) < len(turns)))
        better += is_better
        assert (asked in uids) == (retried in uids) == is_better
        if not is_better:
            num_thrown += len(reflection)
            continue
        said, guided = uids.index(asked), uids.index(retried)
        assert (int(batch["stage_B"][said]), int(batch["stage_B"][guided])) == (REFLECTION, GUIDED)
        assert earned(batch, said) == earned(batch, guided) == 1
        assert turns_of(batch, said) == [([*flat(turns), 7], reflection)]
        assert_log_probabilities(batch, said, ASKING)
        opening = [*flat(turns[:turn]), 8, *found, *turns[turn][0]]
        assert turns_of(batch, guided) == [(opening, mine[turn][1]), *mine[turn + 1 :]]
        assert_log_probabilities(batch, guided, ASKING)
        for alone in (said, guided):
            assert int((batch["group_B"] == batch["group_B"][alone]).sum()) == 1
            assert int(batch["draw_P"][batch["group_B"][alone]]) >= OWN_GROUP
    assert thrown == num_thrown
    said = services.episodes.said
    assert [each for each in said if each[0] == "?"] == asked_behind
    assert [last for text, last in said if text.startswith("!")] == told_behind
    number = len(base)
    assert told == {
        "retry/valid": valid / number, "retry/tried": len(retries), "retry/better": better,
        "retry/base": pytest.approx(sum(earned(batch, row) for row in base) / number),
        "retry/again": pytest.approx(sum(earned(batch, r) for r in retries) / len(retries)),
        "rollout/tokens_shared": int(batch["fork_at_B"].clamp(min=0).sum()),
    }  # fmt: skip
    assert len(retries) >= 3
    assert len(rows(batch, REFLECTION)) == len(rows(batch, GUIDED)) == better
    assert sorted({u for u, d in zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True)
                   if d == 0}) == [4, 5, 6]  # fmt: skip
    log = services.log.logged["turns"]
    assert log.keys() == set(batch["rollout_uid_B"].tolist())


def test_some_retries_are_better():
    assert sum(tried(seed=seed)[0].metrics["retry/better"] for seed in range(4)) >= 2


def test_lost_episodes_are_in_no_mean_of_rewards():
    class Losing(Walk):
        def step(self, action):
            if self.seed == 5:
                raise ValueError("broken")
            return super().step(action)

        def reset(self, seed):
            self.seed = seed
            return super().reset(seed)

    rolled, _ = tried(kind=Losing)
    batch = rolled.batch
    scored = [row for row in rows(batch, BASE) if batch["exit_B"][row] < Exit.ENVIRONMENT_CRASH]
    assert len(scored) == 9
    mean = sum(earned(batch, row) for row in scored) / 9
    assert rolled.metrics["retry/base"] == pytest.approx(mean)
    assert mean > 0


def test_requests_that_go_on_from_a_cache_and_others_give_the_same(find_caches):
    sources = find_caches(True)
    ours = tried()[0].batch
    assert any(sources)
    find_caches(False)
    theirs = tried()[0].batch
    for name, column in ours.columns.items():
        same = column.equal(theirs[name]) or torch.equal(
            column.nan_to_num(), theirs[name].nan_to_num()
        )
        assert same, name


@pytest.mark.parametrize("limits", [{"context": 9}, {"max_tokens": 4}])
def test_first_actions_of_retries_have_the_room_that_is_left(limits):
    """Of the context behind the guide, and of the episode's tokens beside what was taken over."""
    context, most = limits.get("context", 100), limits.get("max_tokens", 12)
    part = dataclasses.replace(PART, max_tokens=limits.get("max_tokens", 0))
    cut = 0
    for seed in range(4):
        batch = tried(part, seed=seed, context=context)[0].batch
        uids = batch["rollout_uid_B"].tolist()
        base = zip(rows(batch, BASE), seeds_of(DRAWS, seed), strict=True)
        for row, (asked, retried, name) in (each for each in base if each[1][2] in uids):
            turns, again = turns_of(batch, row), turns_of(batch, uids.index(name))
            room = min(2, context - len(flat(turns)) - 1)
            found = drawn(ASKING, room, ids=(*flat(turns), 7), seed=asked)
            said = [token for token in found if token]
            turn = int("".join(map(str, said)))
            ids = (*flat(turns[:turn]), 8, *said, *turns[turn][0])
            used = sum(len(action) for _, action in turns[:turn])
            left = min(most - used, context - len(ids))
            assert again[turn][1] == drawn(ASKING, min(3, left), ids=ids, seed=retried)
            cut += len(again[turn][1]) == left < 3 and again[turn][1][-1] != 0
    assert cut


def test_without_room_there_is_neither_reflection_nor_retry():
    sizes = {}
    for context in (100, 9, 7):
        found, _ = tried(context=context)
        assert int(found.batch["size_B"].max()) <= context
        sizes[context] = len(rows(found.batch, RETRY))
    assert sizes[100] > sizes[9] > sizes[7] == 0


def test_first_turns_can_be_played_again():
    """A reflection that names turn 0: the guide stands where the prompt does."""
    table = {**ASKING, 7: (0, 1, 0, 0, 0, 0, 0, 0, 0)}
    engine = TableEngine(by_last_token(table))
    services = services_over(engine, Walk, KNOWN, {**PIECES, 1: "0", 7: "?", 8: "!"})
    part = RetryFromReflection(ask="?", guide="{text}!", reflection_tokens=1)
    batch = played(part, (Draw(4, 6),), engine, services)[0].batch
    again = rows(batch, RETRY)
    assert len(again) == 6
    assert batch["fork_at_B"][again].tolist() == [0] * 6
    for row in again:
        (given, action), *_ = turns_of(batch, row)
        assert given == [3]
        seed = seeds_of((Draw(4, 6),), 0)[row - 6][1]
        assert action == drawn(table, 3, ids=(3, 8), seed=seed)


def test_words_tell_the_reward_and_the_prompt():
    """The letters 0, 1 and a stand behind the question mark."""
    asked = set()
    for seed in range(6):
        engine = TableEngine(by_last_token(ASKING))
        services = services_over(engine, Walk, {**KNOWN, "0": 4}, {**PIECES, 7: "?", 8: "!"})
        part = RetryFromReflection(ask="?{reward}{prompt}", guide="{text}")
        batch = played(part, DRAWS, engine, services, seed)[0].batch
        asked |= {tuple(turns_of(batch, row)[0][0][-3:]) for row in rows(batch, REFLECTION)}
    assert asked == {(7, 4, 3), (7, 1, 3)}  # of failures, and of successes in fewer turns


def test_reports():
    assert read_report("go to 2, not 7", "number", 3).turn == 2
    assert read_report("3", "number", 3) is None
    assert read_report("none", "number", 3) is None
    assert read_report("1" * 5000, "number", 3) is None  # more digits than Python reads
    good = {"outcome": "failure", "root_cause": "a", "suggestion": "b", "retry_from_step": 1}
    text = json.dumps(good)
    assert read_report(f"I think: {text} so.", "json", 2) == (text, 1, False)
    assert read_report(json.dumps({**good, "retry_from_step": "1"}), "json", 2).turn == 1
    assert read_report('{"outcome": "success"}', "json", 2).is_perfect
    for wrong in (
        {"retry_from_step": 2}, {"retry_from_step": -1}, {"retry_from_step": True},
        {"retry_from_step": None}, {"outcome": "fine"}, {"retry_from_step": 0.5},
        {"retry_from_step": "\u00b2"}, {"retry_from_step": "1" * 5000},
    ):  # fmt: skip
        assert read_report(json.dumps({**good, **wrong}), "json", 2) is None, wrong
    assert read_report(json.dumps({**good} | {}).replace("root_cause", "r"), "json", 2) is None
    assert read_report("1", "json", 2) is None
    assert read_report("[1]", "json", 2) is None
    assert read_report("{1", "json", 2) is None


def test_a_reflection_that_finds_nothing_to_change_is_kept_with_a_success():
    """In JSON: the token 1 of a reflection stands for the whole object."""
    perfect = '{"outcome": "success"}'
    engine = TableEngine(by_last_token({**ASKING, 7: (0, 1, 0, 0, 0, 0, 0, 0, 0)}))
    services = services_over(engine, Walk, KNOWN, {**PIECES, 1: perfect, 7: "?"})
    part = RetryFromReflection(form="json", ask="?", reflection_tokens=1)
    (batch, _, thrown, told), _ = played(part, DRAWS, engine, services)
    base, said = rows(batch, BASE), rows(batch, REFLECTION)
    successes = sum(earned(batch, row) >= 1 for row in base)
    assert 0 < successes < 15
    assert len(said) == successes
    assert told["retry/tried"] == 0
    assert told["retry/valid"] == 1
    assert thrown == 15 - successes
    assert all(earned(batch, row) == 1 for row in said)


def test_mistakes_are_refused():
    with pytest.raises(UserError, match="form must be one of auto, number, json"):
        RetryFromReflection(form="xml")
    with pytest.raises(UserError, match="reflection_tokens must be at least 0"):
        RetryFromReflection(reflection_tokens=-1)

    class Two(Walk):
        roles = (0, 1)

    with pytest.raises(UserError, match=r"retry_from_reflection .* has several players"):
        PART.new_tokens(3, Two())
