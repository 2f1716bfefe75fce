"""The environments that come with strop, played by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import tokenizer

from strop.errors import UserError
from strop.tasks.environment import EnvironmentSource, Observation, built_in


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
    environment.reset(5)
    assert environment.step(f"The answer is {value}") == Observation(
        "", 1.0, True, state=f"{product},"
    )


def test_calculator_compact():
    environment = make("calculator", style="compact")
    text = environment.reset(0).text
    assert re.fullmatch(r"1,2,3:[2-4]-[1-3]=", text)
    first, second = int(text[6]), int(text[8])
    assert environment.step(f"{first}-{second}").text == f":{first - second}="
    assert not environment.step("(2+").valid
    assert not environment.step("").valid
    assert environment.step(f"{first - second}1*").reward == 1.0  # one digit is the answer


def test_nothing_of_an_action_is_run(tmp_path):
    environment = make("calculator")
    environment.reset(0)
    target = tmp_path / "made"
    environment.step(f"__import__('pathlib').Path({str(target)!r}).touch()=")
    environment.reset(0)
    environment.step("9**9**9**9=")
    assert not target.exists()


@pytest.mark.parametrize("name", sorted(built_in()))
@given(actions=st.lists(st.text(max_size=12), max_size=6), seed=st.integers(0, 2**40))
def test_any_text_is_answered_and_compact_texts_have_few_characters(name, actions, seed):
    ours = tokenizer()
    for style in ("compact", "plain"):
        one, two = make(name, style=style), make(name, style=style)
        first = one.reset(seed)
        assert first == two.reset(seed)
        answers = [one.step(action) for action in actions]
        assert answers == [two.step(action) for action in actions]
        if style == "compact":
            for observation in (first, *answers):
                ids = ours(observation.text, add_special_tokens=False)["input_ids"]
                assert ours.unk_token_id not in ids


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
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(UserError, match=message):
        make(name, **options)
