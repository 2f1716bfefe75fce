"""Environments of Gymnasium as text: what is shown, which actions are read, and equal seeds."""

import sys

import gymnasium
import numpy as np
import pytest
from commands import Strop
from test_examples import last_metrics

from strop.environments.adapters.gym import marked
from strop.environments.base import source_of
from strop.environments.tasks import load_task
from strop.support.errors import UserError


class Echo(gymnasium.Env):
    """Texts in, texts out."""

    action_space = gymnasium.spaces.Text(4, charset="abc ")
    observation_space = gymnasium.spaces.Text(9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"say {seed}", {}

    def step(self, action):
        return action, 1.0, False, True, {}


class Named(gymnasium.Env):
    """Actions from 3 on with names of its own, some of which a mask forbids; any numbers seen."""

    action_space = gymnasium.spaces.Discrete(3, start=3)

    def get_action_meanings(self):
        return ["go", "go back", "wait"]

    def reset(self, *, seed=None, options=None):
        seen = {"place": np.array([[1, 2]]), "far": np.float64(1 / 3), "lit": True}
        return seen, {"action_mask": np.array([1, 1, 0], dtype=np.int8)}

    def step(self, action):
        return (action, 7), -0.5, action == 4, False, {}


gymnasium.register("Echo-v0", entry_point=Echo, max_episode_steps=5, disable_env_checker=True)
gymnasium.register("Named-v0", entry_point=Named, disable_env_checker=True)


def made(name, **options):
    return source_of(f"gym:{name}", options).make()


def test_a_lake_in_words():
    lake = made("FrozenLake-v1", is_slippery=False)
    assert (lake.max_turns, lake.reward_range) == (100, (-100.0, 1.0))
    first = lake.reset(0)
    assert first.text == (
        "This is FrozenLake-v1. S is the start, F is ice, H is a hole, G is the goal. You are at "
        "[x].\nAnswer with the number or the name of a legal action.\n[S]FFF\nFHFH\nFFFH\nHFFG\n"
        "Observation: 0\nLegal actions: 0 (left), 1 (down), 2 (right), 3 (up)\n"
    )
    for action in ("down", "I go DOWN", "not left but 2", "action 1 (down)", "right"):
        shown = lake.step(action)
        assert (shown.reward, shown.done, shown.valid) == (0.0, False, True)
    won = lake.step("right")
    assert (won.reward, won.done, won.state, won.text) == (1.0, True, "15", "")


@pytest.mark.parametrize("action", ["", "hop", "7", "-1", "9" * 30, "leftish"])
def test_what_is_no_legal_action_uses_up_a_turn_and_nothing_else(action):
    lake = made("FrozenLake-v1", is_slippery=False, illegal_reward=-0.5)
    lake.reset(0)
    shown = lake.step(action)
    assert (shown.valid, shown.reward, shown.done, shown.state) == (False, -0.5, False, "0")
    assert shown.text.startswith("That is not legal.\nLegal actions: 0 (left)")
    assert lake.step("down").state == "4"


def test_a_lake_in_digits():
    lake = made("FrozenLake-v1", is_slippery=False, style="compact", max_turns=6)
    assert (lake.max_turns, lake.max_tokens, lake.reward_range) == (6, 1, (-6.0, 1.0))
    assert lake.reset(0).text == "0,1,2,3:0="
    assert lake.step("1").text == ":4="
    assert lake.step("9") == lake.step("x")
    assert lake.step("x").text == ":4="


def test_a_taxi_shows_its_colours_and_a_mask_says_what_is_legal():
    taxi = made("Taxi-v4")
    assert taxi.reward_range == (-2000.0, 20.0)
    first = taxi.reset(3).text
    assert "|(blue R): |[ ]: :G|" in first
    assert "|(magenta Y)| : |B: |" in first
    assert first.endswith("Legal actions: 0 (south), 2 (east)\n")
    assert not taxi.step("pick up").valid
    assert taxi.step("2").valid
    assert made("Taxi-v4", style="compact").reset(3).text == "0,2:42="


def test_cards_in_digits():
    cards = made("Blackjack-v1", style="compact", reward_range=[-1, 1])
    assert cards.reward_range == (-1.0, 1.0)
    assert cards.reset(3).text == "0,1:7,10,0="
    assert made("Blackjack-v1").reward_range is None


def test_texts_and_names_of_others():
    echo = made("Echo-v0", rules="Repeat.")
    assert echo.max_turns == 5
    assert echo.reset(4).text == (
        "This is Echo-v0. Repeat.\nAnswer with a text.\nObservation: say 4\n"
        "Legal: a text of 1 to 4 characters\n"
    )
    assert not echo.step("abcabc").valid
    cut = echo.step(" ab\n")
    assert (cut.reward, cut.done, cut.truncated, cut.state) == (1.0, False, True, "ab")
    named = made("Named-v0")
    assert named.reset(0).text.endswith(
        "Observation: 1,2,0.3333,1\nLegal actions: 3 (go), 4 (go back)\n"
    )
    assert not named.step("wait").valid
    assert named.step("go back").done
    other = made("Named-v0", actions=["a", "b", "c"])
    other.reset(0)
    assert other.step("b").done


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"])
def test_equal_seeds_and_actions_give_equal_episodes(name):
    one, two = made(name, style="compact"), made(name, style="compact")
    two.reset(5)
    two.step("1")
    draw = np.random.default_rng(0)
    for seed in (0, 1, 2_000_000_001):
        shown = one.reset(seed)
        assert shown == two.reset(seed)
        while not (shown.done or shown.truncated):
            action = str(draw.integers(2))
            shown = one.step(action)
            assert shown == two.step(action)
            if draw.random() < 0.1:
                break


def test_colours_become_signs():
    drawn = "\x1b[34;1mR\x1b[0m|\x1b[43m \x1b[0m|\x1b[42m_\x1b[0m|\x1b[35m\x1b[43mY\x1b[0m\x1b[0m"
    assert marked(drawn).startswith("(blue R)|[ ]|[_]|")
    assert "\x1b" not in marked(drawn)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Frozen-v1", {}, "cannot make 'Frozen-v1': .*FrozenLake"),
        ("FrozenLake-v1", {"slippery": True}, "unexpected keyword argument 'slippery'"),
        ("FrozenLake-v1", {"actions": ["left"]}, "has 4 actions; actions takes a name for each"),
        ("FrozenLake-v1", {"illegal_reward": "low"}, "illegal_reward must be a number"),
        ("FrozenLake-v1", {"style": "long"}, "style 'long' is none of"),
        ("CartPole-v1", {"style": "compact"}, "which the compact style has no signs for"),
        ("Echo-v0", {"style": "compact"}, "the compact style"),
        ("Pendulum-v1", {}, "take one with a Discrete or Text space"),
    ],
)
def test_mistakes_are_told(name, options, message):
    with pytest.raises(UserError, match=message):
        made(name, **options)


def test_it_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r"pip install 'strop\[gym\]'"):
        made("FrozenLake-v1")
    with pytest.raises(UserError, match="give gym:NAME"):
        load_task("gym:")
    with pytest.raises(UserError, match=r"did you mean 'gym'\?\).*gym:NAME, openenv:URL"):
        load_task("gmy:FrozenLake-v1")


def test_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Strop(monkeypatch, capsys)(
        "train", "grpo", "data.task=gym:FrozenLake-v1",
        "data.task_config={'is_slippery': False, 'max_turns': 4}", "data.train_size=8",
        "training.steps=1", "evaluation.every=0", "sampling.num_prompts=2",
        "sampling.num_rollouts=4", "--out", "run", "--quiet",
    )  # fmt: skip
    found = last_metrics(tmp_path / "run")
    assert 1 <= found["episode/turns_mean"] <= 4
    assert found["reward"] <= 0
    assert 'style = "compact"' in (tmp_path / "run/config.toml").read_text(encoding="utf-8")
