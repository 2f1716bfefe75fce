"""The adapter of TextArena over a fake package; tests/textarena has the real one."""

import random
import sys
from types import ModuleType, SimpleNamespace

import pytest

from strop.environments.base import source_of
from strop.environments.episodes import CallLimits, Episodes
from strop.support.errors import UserError
from strop.support.exits import Exit


class Sums:
    """Players in turn say [what is shown]; a wrong word may be said once more, then it loses."""

    def __init__(self, num: int = 1, corpus: bool = True, paid: object = 1) -> None:
        if not corpus:
            raise LookupError("\n  Resource \x1b[93mwords\x1b[0m not found.\n")
        self.num, self.paid = num, paid

    def reset(self, num_players: int, seed: int) -> None:
        assert num_players == self.num, f"not {num_players}"
        random.seed(seed)
        self.state = SimpleNamespace(
            current_player_id=0, error_count=0, role_mapping={-1: "GAME"}, turn=0,
            said={seat: [(-1, f"You are {seat}.", None)] for seat in range(num_players)},
        )  # fmt: skip
        self._draw()

    def _draw(self) -> None:
        self.shown = random.randint(0, 9)
        self._say(-1, str(self.shown))

    def _say(self, sender: int, text: str) -> None:
        for heard in self.state.said.values():
            heard.append((sender, text, None))

    def get_observation(self) -> tuple[int, list[object]]:
        seat = self.state.current_player_id
        heard, self.state.said[seat] = self.state.said[seat], []
        return seat, heard

    def step(self, action: str) -> tuple[bool, dict[str, object]]:
        self._say(self.state.current_player_id, action)
        self.bad = action != f"[{self.shown}]"
        if self.bad and not self.state.error_count:
            self.state.error_count = 1
            return False, {}
        self.state.turn += 1
        if self.bad or self.state.turn == 4:
            return True, {}
        self.state.error_count = 0
        self.state.current_player_id = self.state.turn % self.num
        self._draw()
        return False, {}

    def close(self) -> tuple[object, dict[int, object]]:
        mover = self.state.current_player_id
        won = -1 if self.bad and self.paid else self.paid
        rewards = {seat: won if seat == mover or won is None else -won for seat in range(self.num)}
        return rewards, {mover: {"invalid_move": self.bad}}


class Bracketed:
    """A wrapper that remembers all that it has shown."""

    def __init__(self, env: Sums) -> None:
        self.env, self.full_observations = env, {}

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # as the package's own, it can be copied
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, action: str) -> object:
        return self.env.step(action=action if "[" in action else f"[{action}]")

    def get_observation(self) -> tuple[int, str]:
        seat, heard = self.env.get_observation()
        self.full_observations.setdefault(seat, []).extend(heard)
        return seat, "|".join(text for _, text, _ in self.full_observations[seat])


@pytest.fixture(autouse=True)
def package(monkeypatch):
    registration = ModuleType("textarena.envs.registration")
    registration.ENV_REGISTRY = {"Sums-v0": None}
    module = ModuleType("textarena")
    module.make = lambda name, **options: Bracketed(Sums(**options))
    for name, each in {
        "textarena": module, "textarena.envs": ModuleType("textarena.envs"),
        "textarena.envs.registration": registration,
    }.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, each)


def made(**options):
    return source_of("textarena:Sums-v0", options).make()


def test_a_turn_shows_what_is_new_and_not_the_own_words():
    game = made(num=2)
    assert game.roles == (0, 1)
    first = game.reset(1)
    number = random.Random(1).randint(0, 9)
    assert (first.text, first.role) == (f"You are 0.\n{number}\n", 0)
    second = game.step(str(number))
    assert second.text.startswith(f"You are 1.\n{number}\n[Player 0] [{number}]\n")
    refused = game.step("x")
    assert (refused.valid, refused.role, refused.text) == (False, 1, "It is your turn.\n")
    lost = game.step("x")
    assert (lost.done, lost.valid, lost.rewards) == (True, False, (1.0, -1.0))


def test_alone_the_reward_is_one_number():
    game = made()
    shown = game.reset(2)
    for _ in range(4):
        shown = game.step(shown.text.split()[-1])
    assert (shown.done, shown.valid, shown.reward, shown.rewards) == (True, True, 1.0, ())
    assert game.roles == ()


def test_the_whole_history_is_of_this_episode():
    game = made(whole=True)
    assert game.rewrites
    first = game.reset(3)
    later = game.step(first.text.strip()[-1])
    assert later.text.startswith(first.text.strip())
    assert game.reset(3) == first


def test_a_game_without_a_reward_has_no_score():
    episodes = Episodes(source_of("textarena:Sums-v0", {"paid": None}), (2,), limits=CallLimits(0))
    (shown,) = episodes.reset()
    for _ in range(4):
        (shown,) = episodes.step([0], [shown.text.split()[-1]])
    assert (shown.done, shown.exit) == (True, Exit.DECLARED)
    episodes.close()


def test_who_loses_by_a_refused_move_without_a_reward_for_it_loses_one():
    game = made(paid=None)
    game.reset(2)
    (_, lost) = game.step("x"), game.step("x")
    assert (lost.done, lost.valid, lost.reward, lost.exit) == (True, False, -1.0, None)


def test_episodes_side_by_side_draw_from_generators_of_their_own():
    random.seed(7)
    wanted, outer = random.Random(7).random(), random.Random(5)
    games = [made(), made()]
    shown = [game.reset(5) for game in games]
    for _ in range(3):
        number = str(outer.randint(0, 9))
        assert [each.text.split()[-1] for each in shown] == [number] * 2
        shown = [game.step(number) for game in games]
    assert random.random() == wanted


def test_mistakes_are_told(monkeypatch):
    with pytest.raises(UserError, match=r"no game 'Sum-v0'.*Sums-v0"):
        source_of("textarena:Sum-v0").make()
    with pytest.raises(UserError, match="does not begin with 2 players: AssertionError: not 2"):
        made(players=2)
    with pytest.raises(UserError, match=r"python -m nltk\.downloader words"):
        made(corpus=False)
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(UserError, match=r"pip install 'strop\[textarena\]'"):
        made()
