"""A league: who plays whom, how a game changes the ratings, and an exact resume."""

import pyarrow.parquet as pq
import pytest
from models import without_times
from safetensors.torch import load_file
from test_roles import STEPS, TWO, raw, same

from strop.method.services import Player
from strop.support import adapted
from strop.training.learner import adapters
from strop.training.record import checkpoint
from strop.training.services.cast import Cast
from strop.training.services.league import League, Played

NAMES = ("first", "second")
ROLES = {0: "first", 1: "second", 2: "base"}


def test_worked_example_of_the_ratings():
    # 1000 against 1000: expected 1/2, so a win is worth half of k = 4 to one and costs the other it
    league = League(NAMES, every=5)
    told = league.rate([Played(("first",), ("second@5",), 1.0)])
    assert league.ratings == {"first": 1002.0, "second@5": 998.0}
    assert told == {
        "league/elo/first": 1002.0, "league/elo/second": 1000.0, "league/games": 1.0,
        "league/members": 0.0, "league/score": 1.0,
    }  # fmt: skip
    # 400 points ahead ten of eleven games are won: losing one costs 4 * 10 / 11
    league.ratings = {"first": 1400.0, "second@5": 1000.0}
    league.rate([Played(("first",), ("second@5",), 0.0)])
    assert league.ratings["first"] == pytest.approx(1400 - 40 / 11)
    assert league.ratings["second@5"] == pytest.approx(1000 + 40 / 11)
    # a team is as good as its mean, and each of it moves as much
    league.ratings = {"first": 1000.0, "second": 1800.0, "base": 1000.0}
    league.rate([Played(NAMES, ("base",), 0.5)])
    moved = 4 * (0.5 - 10 / 11)
    assert league.ratings["first"] == pytest.approx(1000 + moved)
    assert league.ratings["second"] == pytest.approx(1800 + moved)
    assert league.ratings["base"] == pytest.approx(1000 - moved)


def test_members_come_with_the_rating_of_now_and_the_oldest_leave():
    league = League(NAMES, every=10, size=2, ratings={"first": 1100.0})
    assert [step for step in range(1, 31) if league.due(step)] == [10, 20, 30]
    new, left = league.take(10)
    assert (new, left) == ({"first@10": "first", "second@10": "second"}, [])
    assert league.ratings["first@10"] == 1100.0
    league.take(20)
    _, left = league.take(30)
    assert left == ["first@10", "second@10"]
    assert league.copies() == ["first@20", "second@20", "first@30", "second@30"]
    assert set(league.ratings) == {"first", *league.copies()}
    again = League(NAMES, every=10, size=2)
    again.load_state_dict(league.state_dict())
    assert again == league


def test_a_share_of_the_games_is_played_against_one_member_by_one_role_of_now():
    league = League(NAMES, every=1, share=0.25, members=[3, 7])
    cast = Cast(NAMES, ROLES, league=league, seed=5)
    games = {}
    for game in range(400):
        of = cast.players(game)
        games[game] = tuple(of(role) for role in ROLES)
        assert games[game][2] == Player("base", -1)  # it never was another one
    plain = (Player("first", 0), Player("second", 1), Player("base", -1))
    against = {game: who for game, who in games.items() if who != plain}
    assert 70 < len(against) < 130  # 100, four deviations are 35
    kinds = {(Player("first", 0), Player(f"second@{step}", -1)) for step in (3, 7)}
    kinds |= {(Player(f"first@{step}", -1), Player("second", 1)) for step in (3, 7)}
    assert {who[:2] for who in against.values()} == kinds
    # by seed, step and game alone
    again = Cast(NAMES, ROLES, league=league, seed=5)
    assert {game: tuple(map(again.players(game), ROLES)) for game in games} == games
    for other in (Cast(NAMES, ROLES, league=league, seed=6), Cast(NAMES, ROLES, league=league,
                                                                  seed=5, step=2)):  # fmt: skip
        assert {game: tuple(map(other.players(game), ROLES)) for game in games} != games
    # of one adapter in both seats one plays as it was
    alone = Cast(("one",), {0: "one", 1: "one"}, league=League(("one",), 1, 1.0, members=[2]))
    now, then = Player("one", 0), Player("one@2", -1)
    assert {tuple(map(alone.players(game), (0, 1))) for game in games} == {(now, then), (then, now)}
    with cast.without_league():
        assert {tuple(map(cast.players(game), ROLES)) for game in games} == {plain}


def test_a_league_goes_on_exactly_and_its_members_are_the_adapters_of_then(runner, tmp_path):
    roles = {**TWO, "league_every": 1, "league_share": 0.75, "league_size": 2}
    plain = raw(recipe="grpo", roles=roles, training={"save_every": 1})
    whole = runner.whole(plain, tmp_path / "whole")
    folder = tmp_path / "run"
    runner.whole(raw(recipe="grpo", roles=roles, training={"steps": 2}), folder)
    run = runner.resume(folder, training={"steps": STEPS})
    league = run.world.services.sampling.cast.league
    assert league.members == [1, 2]
    for name in league.copies():  # they are in no optimiser, and nothing trains them
        assert not any(w.requires_grad for w in adapted.weights_of(run.loaded.model, name))
    runner.go(run)
    assert without_times(folder) == without_times(tmp_path / "whole")
    last, before = (checkpoint.complete(whole.checkpoints)[n] for n in (-1, -2))
    own = checkpoint.newest(folder / "checkpoints")
    assert {path.name for path in own.iterdir() if path.is_dir()} == {
        "first", "second", "first@2", "second@2", "first@3", "second@3"
    }  # fmt: skip
    for name in ("first", "second", "first@2", "second@3"):
        assert same(*(load_file(place / name / adapters.WEIGHTS) for place in (own, last)))
    # a member is what the checkpoint of its step has
    assert same(*(load_file(p / n / adapters.WEIGHTS) for p, n in ((last, "first@2"),
                                                                   (before, "first"))))  # fmt: skip
    lines = without_times(folder)
    assert lines[0]["league/games"] == 0
    assert all(line["league/games"] > 0 for line in lines[1:])
    assert lines[-1]["league/elo/first"] != 1000
    rows = pq.read_table(folder / f"rollouts/step-{STEPS:06d}.parquet").to_pylist()
    met = {(row["adapter"], row["opponent"]) for row in rows}
    assert met > {("first", None), ("second", None)}
    assert {other for _, other in met} <= {None, "first@1", "second@1", "first@2", "second@2"}
