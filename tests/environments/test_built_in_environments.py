"""The environments that come with strop, played by hand."""

import re
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import tokenizer

from strop.environments.base import EnvironmentSource, Observation, built_in
from strop.support.errors import UserError


def make(name, **options):
    return EnvironmentSource(name, options).make()


def corridor_plan(seed, size):
    """The shortest way: to the key, take it, to the door, open it."""
    environment = make("corridor", size=size, style="compact")
    environment.reset(seed)
    to_key = environment.key - environment.position
    moves = ("2" if to_key > 0 else "1") * abs(to_key)
    return moves + "3" + "2" * (size - environment.key) + "3"


@given(seed=st.integers(0, 10**6), size=st.integers(2, 9))
def test_corridor_by_the_shortest_way(seed, size):
    environment = make("corridor", size=size, style="compact")
    environment.reset(seed)
    plan = corridor_plan(seed, size)
    answers = [environment.step(action) for action in plan]
    assert [a.reward for a in answers] == [0.0] * (len(plan) - 1) + [1.0]
    assert [a.done for a in answers] == [False] * (len(plan) - 1) + [True]
    assert len(plan) <= environment.max_turns


def test_corridor_states_and_texts():
    environment = make("corridor", size=3, step_cost=0.1, style="compact")
    seed = next(s for s in range(100) if environment.reset(s).text == "1,2,3:21=")
    assert environment.reset(seed).state == "1,0"
    walk = [(a, environment.step(a)) for a in ("3", "1", "2", "3x", "9", "", "2", "3")]
    assert [(o.text, o.state, o.valid) for _, o in walk[:-1]] == [
        (":21=", "1,0", True),  # no key here
        (":21=", "1,0", True),  # the wall
        (":22=", "2,0", True),
        (":02=", "2,1", True),  # only the first character counts
        (":02=", "2,1", False),
        (":02=", "2,1", False),
        (":03=", "3,1", True),
    ]
    assert [o.reward for _, o in walk] == pytest.approx([-0.1] * 7 + [0.9])
    assert walk[-1][1].done
    low, high = environment.reward_range
    assert (low, high) == pytest.approx((-0.9, 0.9))


def test_corridor_in_words():
    environment = make("corridor", size=3)
    seed = next(
        s for s in range(100) if "cell 1. The key lies in cell 2" in environment.reset(s).text
    )
    assert "left, right, take or open" in environment.reset(seed).text
    assert not environment.step("I could go left or right").valid
    assert environment.step("Going RIGHT.").text == "You are in cell 2. The key lies in cell 2.\n"
    assert environment.step("open").state == "2,0"  # not the door, and no key
    assert environment.step("take").text == "You are in cell 2. You hold the key.\n"
    environment.step("right")
    assert environment.step("take").state == "3,1"  # only `open` opens in words
    assert environment.step("open") == Observation("", 1.0, True, state="3,1")


@given(seed=st.integers(0, 10**6), size=st.integers(2, 500))
def test_halving_finds_the_hidden_number_in_time(seed, size):
    environment = make("hidden_number", size=size, style="compact")
    text = environment.reset(seed).text
    for _ in range(environment.max_turns):
        low, high = map(int, re.findall(r"\d+", text))
        answer = environment.step(f"{(low + high) // 2}")
        assert answer.valid
        if answer.done:
            assert (answer.reward, answer.text) == (1.0, "")
            return
        assert answer.reward == 0
        text = answer.text
    raise AssertionError("not found")


def test_hidden_number_in_words_with_a_cost():
    environment = make("hidden_number", size=100, turn_cost=0.25)
    seed = next(s for s in range(1000) if environment.reset(s) and environment.number == 40)
    environment.reset(seed)
    assert environment.step("Is it 70?").text == "It is lower.\n"
    assert environment.step("30").state == "31,69"
    for action in ("between 31 and 69", "none", "0", "101", "9" * 50):
        assert not environment.step(action).valid
    assert environment.step("40") == Observation("", 0.0, True, state="31,69")
    environment.reset(seed)
    environment.step("41")
    assert environment.step("40 = 40").reward == 0.75


def test_calculator_calls_then_answers():
    environment = make("calculator", size=99, operations="*")
    question = environment.reset(5).text
    (product,) = re.findall(r"What is (\d+\*\d+)\?", question)
    value = eval(product)
    assert environment.step(f"Let me see: {product}=").text == f"{value}\n"
    assert environment.step("(2+4)/4").text == "3/2\n"
    assert environment.step("no idea").valid is False
    assert environment.step("1/0=").reward == 0  # no value, so it is read as the answer 0
    for answer in (
        f"The answer is {value}",
        f"x={value}",
        f"{product} = {value}. So it is {value}.",
    ):
        environment.reset(5)
        assert environment.step(answer) == Observation("", 1.0, True, state=f"{product},")


def test_calculator_reads_long_actions():
    """A search that tries each beginning anew would take an hour, not this test's moment."""
    environment = make("calculator")
    environment.reset(5)
    assert not environment.step(" -" * 300_000).valid
    assert environment.step(" 5" + " " * 600_000).done


def test_calculator_compact():
    environment = make("calculator", style="compact")
    text = environment.reset(0).text
    assert re.fullmatch(r"1,2,3:[2-7]\+[1-6]=", text)
    first, second = int(text[6]), int(text[8])
    assert first > second
    assert environment.step(f"{first}+{second}").text == f":{first + second}="
    assert not environment.step("(2+").valid
    assert not environment.step("").valid
    ended = "1*" if first + second > 9 else "*("
    assert environment.step(f"{first + second}{ended}").reward == 1.0  # at most two digits count


@pytest.mark.parametrize("style", ["compact", "plain"])
def test_no_answer_is_right_in_a_tenth_of_the_questions(style):
    environment = make("calculator", style=style)
    asked = [(environment.reset(seed), environment.columns()["answer"])[1] for seed in range(6000)]
    ((_, most),) = Counter(asked).most_common(1)
    assert most / len(asked) < 0.1


@pytest.mark.parametrize(("operations", "values"), [("-", range(1, 7)), ("+", range(3, 14))])
def test_every_value_of_a_sum_or_difference_is_asked_for_equally_often(operations, values):
    environment = make("calculator", size=7, operations=operations)
    found, num = Counter(), 600 * len(values)
    for seed in range(num):
        environment.reset(seed)
        larger, smaller = map(int, environment.question.split(operations))
        assert 1 <= smaller < larger <= 7
        found[int(environment.columns()["answer"])] += 1
    assert set(found) == set(values)
    assert all(abs(times / 600 - 1) < 0.15 for times in found.values())


def test_nothing_of_an_action_is_run(tmp_path):
    environment = make("calculator")
    environment.reset(0)
    target = tmp_path / "made"
    environment.step(f"__import__('pathlib').Path({str(target)!r}).touch()=")
    environment.reset(0)
    environment.step("9**9**9**9=")
    assert not target.exists()


def played(environment, actions):
    """What it answers until the episode is over."""
    answers = []
    for action in actions:
        answers.append(environment.step(action))
        if answers[-1].done:
            break
    return answers


@pytest.mark.parametrize("name", sorted(built_in()))
@given(actions=st.lists(st.text(max_size=12), max_size=6), seed=st.integers(0, 2**40))
def test_any_text_is_answered_and_compact_texts_have_few_characters(name, actions, seed):
    ours = tokenizer()
    styles = ("compact", "plain") if EnvironmentSource(name).styled("plain") else ("",)
    for style in styles:
        options = {"style": style} if style else {}
        one, two = make(name, **options), make(name, **options)
        first = one.reset(seed)
        assert first == two.reset(seed)
        answers = played(one, actions)
        assert answers == played(two, actions)
        if style == "compact":
            for observation in (first, *answers):
                ids = ours(observation.text, add_special_tokens=False)["input_ids"]
                assert ours.unk_token_id not in ids
        one.close()
        two.close()


def test_open_spiel_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    message = r"needs the package open-spiel \(.*pyspiel.*\): pip install 'strop\[games\]'"
    with pytest.raises(UserError, match=message):
        make("open_spiel")


def test_kuhn_poker_shows_each_player_its_own_card():
    """All six deals; pass, bet, bet: 2 chips change hands, and the higher card has them."""
    deals = set()
    for seed in range(40):
        game = make("open_spiel", style="compact")
        first = game.reset(seed)
        second = game.step("0")
        third = game.step("1")
        last = game.step("1and more")
        mine, theirs = first.text[-2], second.text[4]
        deals.add(mine + theirs)
        assert (first.text, first.role) == (f"0,1:{mine}=", 0)
        assert (second.text, second.role, second.rewards) == (f"0,1:{theirs}-=", 1, (0, 0))
        assert (third.text, third.role) == (f":{mine}-+=", 0)
        won = 2.0 if mine > theirs else -2.0
        assert last == Observation("", done=True, rewards=(won, -won))
        assert len({first.state, second.state, third.state}) == 3
    assert deals == {"01", "02", "10", "12", "20", "21"}


def test_tic_tac_toe_is_won_and_lost():
    game = make("open_spiel", game="tic_tac_toe", style="compact")
    assert game.reset(5).text == "0,1,2,3,4,5,6,7,8:000000000="
    texts = [game.step(move) for move in "0314"]
    assert [o.role for o in texts] == [1, 0, 1, 0]
    assert [o.text for o in texts] == [
        "1,2,3,4,5,6,7,8:100000000=", ":100200000=", ":110200000=", ":110220000="
    ]  # fmt: skip
    assert game.step("2") == Observation("", done=True, rewards=(1.0, -1.0))


@pytest.mark.parametrize("move", ["0", "9", "", "x", "-7"])
def test_a_move_that_is_not_legal_loses(move):
    game = make("open_spiel", game="tic_tac_toe", style="compact", legal_reward=0.1)
    game.reset(0)
    assert game.step("0").rewards == (0.1, 0.0)
    lost = game.step(move)
    assert (lost.done, lost.valid, lost.rewards) == (True, False, (0.0, -1.05))
    assert game.reward_range == (-1.05, pytest.approx(1.9))


def test_open_spiel_in_words():
    game = make("open_spiel")
    text = game.reset(0).text
    assert "You are player 0 of 2 in the game kuhn_poker" in text
    assert text.endswith("Legal actions: 0 (Pass), 1 (Bet)\n")
    answer = game.step("With 2 cards below mine I choose 1.")
    assert answer.valid
    assert answer.text.startswith("You are player 1 of 2")
    assert "You are" not in game.reset(0).text.partition("You see")[2]
    assert not game.step("I bet").valid


def test_games_of_three_and_of_one_player():
    three = make("open_spiel", game="kuhn_poker(players=3)", style="compact")
    assert three.roles == (0, 1, 2)
    three.reset(0)
    assert [three.step("0").role for _ in range(2)] == [1, 2]
    assert len(three.step("0").rewards) == 3
    assert make("open_spiel", game="catch").roles == ()


def test_hide_and_guess_by_halving():
    """Three guesses by halving find seven of nine numbers."""
    found = []
    for hidden in range(1, 10):
        game = make("hide_and_guess", style="compact")
        assert (game.reset(3).text, game.reset(3).role) == ("(1,9)=", 0)
        observation = game.step(str(hidden))
        assert (observation.text, observation.role, observation.rewards) == ("1,9=", 1, ())
        while not observation.done:
            low, high = map(int, re.findall(r"\d", observation.text))
            observation = game.step(str((low + high) // 2))
        found.append(observation.rewards)
    # 5; 2 and 7; 1, 3, 6 and 8 are found with three guesses, 4 and 9 are not
    assert found == [(1.0, 0.0) if hidden in (4, 9) else (0.0, 1.0) for hidden in range(1, 10)]


def test_defenders_take_turns_and_share():
    game = make("hide_and_guess", defenders=2, guesses=3, share=0.25, style="compact")
    assert (game.roles, game.max_turns) == ((0, 1, 1), 2)
    game.reset(0)
    walk = [game.step(a) for a in ("7", "2", "x", "7")]
    assert [(o.text, o.role, o.valid) for o in walk[:3]] == [
        ("1,9=", 1, True), ("3,9=", 2, True), (":3,9=", 1, False)
    ]  # fmt: skip
    assert walk[3] == Observation("", done=True, rewards=(0.0, 1.0, 0.25))


def test_an_attacker_without_a_number_forfeits():
    game = make("hide_and_guess", guesses=1)
    game.reset(0)
    assert not game.step("12").valid
    assert 1 <= game.number <= 9
    missed = game.step(str(game.number % 9 + 1))
    assert missed == Observation("", done=True, rewards=(0.0, 0.0))
    game.reset(0)
    assert "It lies from 1 to 9." in game.step("Number 4 then").text
    assert game.step("none").rewards == (1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("corridor", {"size": 1}, "corridor: size must be a whole number from 2 to 9, it is 1"),
        ("corridor", {"step_cost": "much"}, "step_cost must be a number of at least 0"),
        ("corridor", {"style": "brief"}, "style 'brief' is none of plain, compact"),
        ("corridor", {"length": 3}, "it has size, max_turns, step_cost, style"),
        ("hidden_number", {"size": 4.5}, "size must be a whole number"),
        ("hidden_number", {"turn_cost": 2}, "from 0.0 to 1.0"),
        ("calculator", {"operations": "%"}, r"operations must be some of \+ - \*"),
        ("calculator", {"size": 1}, "size must be"),
        ("calculator", {"max_turns": 0}, "max_turns must be"),
        ("hide_and_guess", {"defenders": 0}, "defenders must be a whole number from 1 to 100"),
        ("hide_and_guess", {"share": 2}, "share must be a number from 0.0 to 1.0"),
        ("open_spiel", {"game": "khun_poker"}, r"no game 'khun_poker' \(did you mean 'kuhn_pok"),
        ("open_spiel", {"game": "kuhn_poker(cards=3)"}, "cannot load the game 'kuhn_poker.cards"),
        ("open_spiel", {"game": "matrix_rps"}, "players act at once"),
        ("open_spiel", {"game": "leduc_poker", "style": "compact"}, "has no signs for"),
        ("open_spiel", {"format_penalty": -1}, "format_penalty must be a number of at least 0"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(UserError, match=message):
        make(name, **options)
