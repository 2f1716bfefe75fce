"""Corridors with signs, played by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import tokenizer

from strop.environments.base import EnvironmentSource
from strop.support.errors import UserError


def make(**options):
    return EnvironmentSource("endless_t_maze", {"style": "compact"} | options).make()


def turn(environment):
    """The turn that the newest sign says, compactly."""
    return {"left": "1", "right": "2"}[environment.corridors[environment.passed][0]]


@given(seed=st.integers(0, 10**6), num=st.integers(1, 9), shortest=st.integers(0, 4))
def test_the_newest_sign_leads_through_all_corridors(seed, num, shortest):
    environment = make(n_corridors=num, length=4, shortest=shortest)
    seen = environment.reset(seed)
    rewards, texts = [], [seen.text]
    for number, (_, length) in enumerate(environment.corridors, 1):
        assert (shortest or 4) <= length <= 4
        sign = texts[-1]
        texts += [environment.step("3").text for _ in range(length)]
        assert texts[-length - 1 :] == [sign] + ["-="] * (length - 1) + ["+="]
        seen = environment.step(sign[0])
        assert seen.measures == {"corridors": number}
        rewards.append(seen.reward)
        texts.append(seen.text)
    assert seen.done
    assert rewards == [1 / num] * num
    assert sum(rewards) == pytest.approx(1)


def test_the_sign_of_an_earlier_corridor_is_void():
    environment = make(n_corridors=2, length=1, penalty=0.1)
    seed = next(s for s in range(99) if [c for c, _ in begin(environment, s)] == ["left", "right"])
    environment.reset(seed)
    assert [environment.step(a).text for a in "31"] == ["+=", "2="]
    environment.step("3")
    last = environment.step("1")
    assert (last.reward, last.done, last.measures) == (-0.1, True, {"corridors": 1.0})


def begin(environment, seed):
    environment.reset(seed)
    return environment.corridors


def test_what_goes_nowhere_costs_and_the_episode_goes_on():
    environment = make(n_corridors=1, length=2, penalty=0.1)
    start = environment.reset(0)
    for action, valid in (("1", True), ("2", True), ("9", False), ("", False)):
        seen = environment.step(action)
        assert (seen.text, seen.reward, seen.valid, seen.done) == (start.text, -0.1, valid, False)
        assert seen.state == start.state
    environment.step("3")
    assert environment.step("3").text == "+="
    seen = environment.step("3")  # straight on, where one has to turn
    assert (seen.text, seen.reward, seen.valid, seen.done) == ("+=", -0.1, True, False)
    assert environment.step(turn(environment)).reward == 1
    assert environment.max_turns == 6 * 3
    assert environment.reward_range == (pytest.approx(-1.8), 1.0)


@pytest.mark.parametrize("style", ["compact", "plain"])
@pytest.mark.parametrize(("window", "alike"), [(3, True), (4, False)])
def test_a_window_cuts_the_sign_or_just_holds_it(window, alike, style):
    """At the end all is the same whatever the sign, and whatever was done on the way."""
    environment = make(n_corridors=1, length=3, window=window, style=style)
    assert environment.rewrites
    forward, nowhere = ("3", "1") if style == "compact" else ("forward", "left")
    seen = {}
    for seed in range(8):
        environment.reset(seed)
        for action in (forward, nowhere, nowhere, forward, forward)[2 * (seed % 2) :]:
            last = environment.step(action).text
        for _ in range(environment.cell, 3):
            last = environment.step(forward).text
        seen.setdefault(environment.corridors[0][0], set()).add(last)
    assert seen.keys() == {"left", "right"}
    assert (seen["left"] == seen["right"]) == alike
    assert all(len(texts) == 1 for texts in seen.values())


def test_a_window_moves_on_into_the_next_corridor():
    environment = make(n_corridors=2, length=2, window=2)
    texts = [environment.reset(5).text, *(environment.step("3").text for _ in range(2))]
    sign = texts[0][0]
    assert texts == [f"{sign}=", f"{sign}=-=", "-=+="]
    assert environment.step(turn(environment)).text == f"+={turn(environment)}="


def test_in_words():
    environment = make(n_corridors=1, length=2, style="plain", window=2)
    first = environment.reset(3).text
    side = environment.corridors[0][0]
    assert re.search(f"You are in cell 0 of 2. The sign says {side}.\n$", first)
    environment.step("I go forward.")
    rules = first.partition("You are in")[0]
    assert environment.step("Forward!").text == (
        f"{rules}You are in cell 1 of 2.\nYou are in cell 2 of 2. The corridor ends: turn.\n"
    )
    assert not environment.step("left or right").valid
    assert environment.step(side).reward == 1


def test_the_shipped_models_can_read_it():
    environment = make(window=2)
    ids = tokenizer().encode(environment.reset(0).text + environment.step("3").text)
    assert tokenizer().unk_token_id not in ids


@pytest.mark.parametrize(
    "options",
    [{"n_corridors": 0}, {"length": 0}, {"shortest": 11}, {"penalty": -1}, {"window": True}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UserError, match="endless_t_maze: "):
        make(**options)
