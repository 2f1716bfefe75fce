"""Games of the real package: what each player sees, the cost of refused moves, and equal seeds."""

import random

import numpy as np
import pytest

from strop.environments.base import source_of
from strop.environments.tasks import load_task
from strop.support.errors import UserError

GAMES = ("GuessTheNumber-v0", "KuhnPoker-v0", "Sokoban-v0", "Blackjack-v0")


def made(name, **options):
    return source_of(f"textarena:{name}", options).make()


def test_a_game_of_one():
    game = made("GuessTheNumber-v0")
    assert game.roles == ()
    assert "guess the number between 1 and 20" in game.reset(3).text
    number = game.game.game_number
    shown = game.step(f"[{number - 1 if number > 1 else number + 1}]")
    assert shown.text in ("The target number is higher.\n", "The target number is lower.\n")
    refused = game.step("[x]")
    assert (refused.valid, refused.done) == (False, False)
    won = game.step(f"[{number}]")
    assert (won.reward, won.done, won.valid, won.rewards) == (1.0, True, True, ())


def test_a_second_refused_move_ends_it():
    game = made("GuessTheNumber-v0")
    game.reset(1)
    assert [game.step("[x]").done for _ in range(2)] == [False, True]


def test_a_reason_in_the_place_of_the_reward_is_a_loss():
    game = made("Countdown-v0")
    game.reset(1)
    refused = [game.step("[hello]") for _ in range(2)][-1]
    assert (refused.done, refused.valid, refused.reward, refused.exit) == (True, False, -1.0, None)


def test_players_have_roles_and_see_their_own_cards():
    game = made("KuhnPoker-v0", max_rounds=1)
    assert game.roles == (0, 1)
    first = game.reset(3)
    assert f"You are Player {first.role}" in first.text
    second = game.step("[bet]")
    assert second.role == 1 - first.role
    assert f"You are Player {second.role}" in second.text
    over = game.step("[fold]")
    wanted = [0.0, 0.0]
    wanted[first.role], wanted[second.role] = 1.0, -1.0
    assert (over.done, over.rewards) == (True, tuple(wanted))


def test_the_whole_history_in_every_turn():
    game = made("TicTacToe-v0", whole=True)
    assert game.rewrites
    game.reset(0)
    game.step("[4]")
    third = game.step("[0]").text
    assert third.count("You are Player 0") == 1
    assert "[Player 0] [4]" in third
    assert "placed" not in game.reset(0).text


@pytest.mark.parametrize("name", GAMES)
def test_episodes_that_alternate_are_those_alone_and_the_global_generators_stay(name):
    actions = ["[1]", "[check]", "[up]", "[hit]"]

    def alone(seed):
        game = made(name)
        found = [game.reset(seed)]
        for action in actions:
            if not found[-1].done:
                found.append(game.step(action))
        return found

    wanted = [alone(seed) for seed in (5, 6)]
    games = [made(name), made(name)]
    for game in games:
        game.reset(4)  # leaves nothing to the next episode
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate()
    found = [[game.reset(seed)] for game, seed in zip(games, (5, 6), strict=True)]
    for action in actions:
        for game, seen in zip(games, found, strict=True):
            if not seen[-1].done:
                seen.append(game.step(action))
    assert found == wanted
    assert random.getstate() == before


def test_mistakes_are_told():
    with pytest.raises(UserError, match=r"no game 'KuhnPokr-v0'.*did you mean 'KuhnPoker-v0"):
        made("KuhnPokr-v0")
    with pytest.raises(UserError, match="does not begin with 3 players"):
        made("KuhnPoker-v0", players=3)
    with pytest.raises(UserError, match=r"refuses data\.task_config"):
        made("KuhnPoker-v0", rounds=3)


def test_a_task():
    task = load_task("textarena:KuhnPoker-v0", num_train=8, num_validation=1, num_heldout=1)
    assert len({prompt.prompt for prompt in task.train}) > 1
