"""Repairs over a table: the history's contents, where tokens were sampled, and unknown values."""

import math

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeEpisodes
from turns_table import assert_log_probabilities, drawn, played, services_over, turns_of

from strop.engines.base import Event
from strop.environments.base import Environment, Observation
from strop.method.part import Draw
from strop.parts.rollout._mending import MOST_TURNS, call_begins, likeness, spliced
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.rewrite_failed_turns import RewriteFailedTurns
from strop.support.errors import UserError

# 0 ends an action; 1 to 3 are calls, of which 1 is right; 4 is reasoning; 5 answers.
CALLS = ["good", "bad", "x" * 60]
TEXTS = ["", *(f"<tool_call>{call}</tool_call>" for call in CALLS), "hm ", "answer",
         "?", "ok", "no", "!"]  # fmt: skip
LETTERS = {"?": 6, "o": 7, "n": 8, "!": 9}
PIECES = dict(enumerate(TEXTS))
TABLE = {
    0: (1, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    1: (0.9, 0, 0, 0, 0.1, 0, 0, 0, 0, 0),
    2: (0.9, 0, 0, 0, 0.1, 0, 0, 0, 0, 0),
    3: (1, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    4: (0.1, 0.3, 0.3, 0.2, 0, 0.1, 0, 0, 0, 0),
    5: (1, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    6: (0, 0.1, 0.2, 0.2, 0.5, 0, 0, 0, 0, 0),
    7: (0, 0.1, 0.2, 0.2, 0.3, 0.2, 0, 0, 0, 0),
    8: (0.05, 0.3, 0.2, 0.1, 0.3, 0.05, 0, 0, 0, 0),
    9: (0, 0.3, 0.2, 0.1, 0.3, 0.1, 0, 0, 0, 0),
}  # fmt: skip
DRAWS = (Draw(4, 20), Draw(5, 20))
PART = RewriteFailedTurns(hint="!")
ACTION, TURNS = 3, 6


class Tool(Environment):
    """A good call shows an o, anything else but an answer an n; an answer ends it."""

    max_turns, max_tokens = TURNS, ACTION

    def reset(self, seed):
        self.calls = 0
        return Observation("?", state="0")

    def step(self, action):
        good = "good" in action
        self.calls += good
        done = "answer" in action
        return Observation("" if done else "on"[not good], reward=float(done and self.calls > 0),
                           done=done, state=str(self.calls), valid=good or done)  # fmt: skip


def services(engine, kind=Tool):
    made = services_over(engine, kind, LETTERS, PIECES)
    made.texts.prompts = dict.fromkeys(range(20), (6,))
    made.episodes = FakeEpisodes(kind, LETTERS, texts=TEXTS)
    return made


def rewritten(part=PART, seed=0, num_slots=None, kind=Tool):
    engine = TableEngine(by_last_token(TABLE), num_slots=num_slots)
    return played(part, DRAWS, engine, services(engine, kind), seed)[0]


def calls_in(action):
    return any(1 <= token <= 3 for token in action)


def text(ids):
    return "".join(TEXTS[id] for id in ids)


def splice(old, new, part):
    """What stands for a failed action, and the places of its tokens that are the repair's."""
    at, begin = (next((n for n, t in enumerate(ids) if 1 <= t <= 3), None) for ids in (old, new))
    whole = (
        not part.marker or at is None or likeness(text(old[at:]), text(new[begin:])) < part.likeness
    )
    if not whole and len(old[:at]) + len(new[begin:]) <= ACTION:
        return [*old[:at], *new[begin:]], range(at, at + len(new) - begin), False
    return new, range(len(new)), True


class Expected:
    """An episode by the rule, one action after another, from the table."""

    def __init__(self, part, seed, own, mends):
        self.part, self.seed, self.mends = part, seed, mends
        self.rng = torch.Generator().manual_seed(own)
        self.turns, self.void, self.tries, self.cut = [], [], {}, False
        self.told = dict.fromkeys(("failed", "tried", "kept", "whole"), 0)
        self.play()

    def act(self, given, seed):
        before = [id for each in (*self.turns, (given, [])) for part in each for id in part]
        return drawn(TABLE, ACTION, ids=tuple(before), seed=seed)

    def play(self):
        given, was_whole = [6], False
        action, void = self.act(given, self.seed), range(0)
        for _ in range(100):
            turn = len(self.turns)
            good = any(token == 1 for token in action)
            done = any(token == 5 for token in action)
            tries = self.tries.get(turn, 0)
            failed = not (good or done)
            self.told["failed"] += failed and not tries
            shown = [7] if good else [8]
            if not failed:
                self.told["kept"] += tries > 0
                self.told["whole"] += tries > 0 and was_whole
            if failed and self.mends and tries >= self.part.max_tries:
                self.mends = False
                shown += [9] if tries > 1 else []
            trial = failed and self.mends
            self.turns.append((given, action))
            self.void.append(void)
            if done:
                return
            if len(self.turns) >= TURNS:
                self.cut = True
                return
            if not trial:
                given, void = shown, range(0)
                action = self.act(given, self.seed)
                continue
            self.tries[turn] = tries + 1
            self.told["tried"] += 1
            new = self.act(shown, int(torch.randint(2**62, (), generator=self.rng)))
            if self.part.marker and not calls_in(new):
                self.mends, given, action, void = False, shown, new, range(0)
            elif len(self.turns) + 1 >= TURNS:
                self.cut = True
                return
            else:
                given, old = self.turns.pop()
                known = self.void.pop()
                self.seed = int(torch.randint(2**62, (), generator=self.rng))
                action, void, was_whole = splice(old, new, self.part)
                void = [*(n for n in known if n < min(void, default=0)), *void]
        raise AssertionError("an episode without an end")


def expected(part, seed):
    rng = torch.Generator().manual_seed(seed)
    number = sum(draw.num_rollouts for draw in DRAWS)
    seeds = torch.randint(2**62, (number, 1), generator=rng).flatten().tolist()
    own = torch.randint(2**62, (number,), generator=rng).tolist()
    coins = torch.rand(number, generator=rng).tolist()
    every = zip(seeds, own, coins, strict=True)
    return seeds, [Expected(part, one, two, coin < part.share) for one, two, coin in every]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"likeness": 0.0},
        {"likeness": 1.1},
        {"max_tries": 1},
        {"max_tries": 2, "share": 0.5},
        {"marker": ""},
    ],
)
def test_every_row_is_that_of_the_rule(seed, fields):
    part = RewriteFailedTurns(hint="!", **fields)
    batch, _, thrown, told = rewritten(part, seed)
    seeds, rows = expected(part, seed)
    assert batch["rollout_uid_B"].tolist() == seeds
    for row, one in enumerate(rows):
        assert turns_of(batch, row) == [(list(g), list(a)) for g, a in one.turns], row
        assert bool(batch["truncated_B"][row]) == one.cut
        sizes = [len(action) for _, action in one.turns]
        places = [sum(sizes[:turn]) + n for turn, void in enumerate(one.void) for n in void]
        assert_log_probabilities(batch, row, TABLE, void=places)
        turns = (batch["rollout_K"] == row).nonzero().squeeze(1).tolist()
        good = [any(token == 1 for token in action) for _, action in one.turns]
        done = [any(token == 5 for token in action) for _, action in one.turns]
        assert batch["valid_K"][turns].tolist() == [g or d for g, d in zip(good, done, strict=True)]
        assert float(batch["reward_K"][turns].sum()) == float(any(good) and done[-1])
        assert batch["index_K"][turns].tolist() == list(range(len(turns)))
    for name in ("failed", "tried", "kept", "whole"):
        assert told[f"repair/{name}"] == sum(one.told[name] for one in rows), name
    assert told["repair/kept"] >= 3
    assert thrown > told["repair/kept"]
    assert batch["mask_T"].equal(batch["origin_T"] == 0)


def test_what_is_kept_of_a_failed_turn():
    kept = {share: rewritten(RewriteFailedTurns(likeness=share)).metrics for share in (0, 0.5, 1.1)}
    assert [each["repair/whole"] / each["repair/kept"] for each in kept.values()] == pytest.approx(
        sorted(each["repair/whole"] / each["repair/kept"] for each in kept.values())
    )
    assert kept[1.1]["repair/whole"] == kept[1.1]["repair/kept"]
    assert kept[0]["repair/whole"] < kept[0.5]["repair/whole"]


@pytest.mark.parametrize("num_slots", [None, 3])
def test_requests_that_go_on_from_a_cache_and_others_give_the_same(num_slots, find_caches):
    sources = find_caches(True)
    ours = rewritten().batch
    assert any(sources)
    find_caches(False)
    theirs = rewritten(num_slots=num_slots).batch
    for name, column in ours.columns.items():
        assert column.nan_to_num().equal(theirs[name].nan_to_num()), name


def test_equals_plain_episodes_where_nothing_is_repaired():
    engine = TableEngine(by_last_token(TABLE))
    plain = played(PlayTurns(), DRAWS, engine, services(engine))[0].batch
    for part in (RewriteFailedTurns(share=0.0), RewriteFailedTurns(max_tries=0)):
        batch, _, thrown, told = rewritten(part)
        for name, column in plain.columns.items():
            assert batch[name].equal(column), name
        assert thrown == 0
        assert (told["repair/tried"], told["repair/kept"]) == (0, 0)
        assert told["repair/failed"] == int((~plain["valid_K"]).sum())


def test_worked_example():
    old, new = "print(sum(range(10)))", "print(sum(range(11)))"
    assert likeness(old, new) == pytest.approx(0.952, abs=5e-4)
    program = (
        "from sympy import symbols, Sum\nprint(Sum(symbols('k'), (symbols('k'), 1, 9)).doit())"
    )
    assert likeness(old, program) < 0.5

    def ev(*ids, ended=""):
        return Event(
            0, ids, (-0.5,) * len(ids), 3, (-0.5,) * len(ids), (0.1,) * len(ids), (), ended
        )

    pieces = dict(enumerate(["let me ", "<tool", "_call>", old, new, program, "so ", "</end>"]))
    failed = (ev(0, 1), ev(2, 3, 7, ended="stop"))
    decode = lambda ids: "".join(pieces[id] for id in ids)  # noqa: E731
    # alike: the old reasoning, the new call
    events, whole = spliced(
        failed, (ev(6, 1, 2), ev(4, 7, ended="stop")), "<tool_call>", 0.5, decode
    )
    assert [id for event in events for id in event.ids] == [0, 1, 2, 4, 7]
    assert not whole
    assert [math.isnan(event.logp[0]) for event in events] == [False, True, True]
    assert [event.ended for event in events] == ["", "", "stop"]
    # not alike: the new turn
    events, whole = spliced(failed, (ev(6, 1, 2, 5, 7, ended="stop"),), "<tool_call>", 0.5, decode)
    assert [id for event in events for id in event.ids] == [6, 1, 2, 5, 7]
    assert whole
    # no call to be found in one of them
    assert spliced(failed, (ev(4, ended="stop"),), "<tool_call>", 0.0, decode)[1]
    assert call_begins((0, 1, 2, 3), "<tool_call>", decode) == 1
    assert call_begins((0, 3), "<tool_call>", decode) is None
    assert call_begins((0, 3), "", decode) is None


def test_after_so_many_turns_nothing_more_is_repaired():
    class Long(Tool):
        max_turns = 60

    part = RewriteFailedTurns(max_tries=100, likeness=0.0)
    table = {**TABLE, 8: (0, 0, 1, 0, 0, 0, 0, 0, 0, 0), 6: TABLE[2], 2: TABLE[3]}
    table[6] = (0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    engine = TableEngine(by_last_token(table))
    roomy = services(engine, Long)
    roomy.sampling.context_tokens = 1000
    found, _ = played(part, (Draw(4, 1),), engine, roomy)
    assert found.metrics["repair/tried"] == MOST_TURNS
    assert not found.batch["valid_K"].any()
    assert found.batch.size("K") == 60


def test_a_turn_after_a_repair_does_not_draw_again_what_led_to_the_failure():
    class Long(Tool):
        max_tokens = 8

    only = {a: tuple(float(b == n) for n in range(10)) for a, b in {1: 0, 2: 0, 5: 0, 8: 1}.items()}
    only |= {a: tuple(float(b == n) for n in range(10)) for a, b in {6: 4, 4: 9, 9: 7}.items()}
    coin = (0, 0, 0.5, 0, 0, 0.5, 0, 0, 0, 0)  # a bad call or an answer, after an o
    engine = TableEngine(by_last_token(TABLE | only | {7: coin}))
    long = services(engine, Long)
    long.sampling.context_tokens = 100
    part = RewriteFailedTurns(max_tries=1, likeness=1.1)
    found = played(part, (Draw(4, 200),), engine, long)[0]
    turns = [turns_of(found.batch, row) for row in range(200)]
    # the failed turn and the one after its repair toss the coin at the same place
    after = [each[1][1][0] == 5 for each in turns if each[0][1] == [1, 0]]
    assert len(after) > 60
    assert 0.3 < sum(after) / len(after) < 0.7


def test_mistakes_are_refused():
    for wrong, said in (
        ({"share": 1.5}, "share must be between 0"), ({"max_tries": -1}, "max_tries must be at"),
        ({"likeness": -0.1}, "likeness must be at least 0"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            RewriteFailedTurns(**wrong)

    class Two(Tool):
        roles = (0, 1)

    with pytest.raises(UserError, match=r"rewrite_failed_turns .* has several players"):
        PART.new_tokens(3, Two())
