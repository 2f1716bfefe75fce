"""The library's rules by hand, and a run whose scripted answers write, find and call a function."""

import json
import math

import pytest
import torch
from fakes.services import rolled_out
from runs import world_of
from scripted_model import save_scripted

from strop.method.part import Draw
from strop.parts.rollout import _library as library
from strop.parts.rollout._library import add, count, is_useless, nearest, whole
from strop.parts.rollout.play_with_library import PlayWithLibrary
from strop.support.errors import UserError


def made(*names, **numbers):
    known = {}
    for name in names:
        add(known, name, f"def {name}(x):\n    return x\n", 1, 0)
        known[name] |= numbers
    return known


@pytest.mark.parametrize(
    ("freq", "utility", "dropped"), [(10, 7, False), (6, 1, True), (3, 0, False), (8, 3, True)]
)
def test_what_is_seldom_of_use_is_dropped(freq, utility, dropped):
    """The rule as released, with least 5 and share 1/2."""
    (each,) = made("f", freq=freq, utility=utility).values()
    assert is_useless(each, "utility", 5, 0.5) == dropped
    assert not is_useless(each, "none", 5, 0.5)


def test_lift_keeps_what_helps_where_success_is_rare():
    """X: 7 of 10 on prompts of .9, lift -.2, error .153. Y: 3 of 8 on prompts of .1, lift .275."""
    known = made("hurts", "helps")
    for num in range(10):
        count(known, ["hurts"], float(num < 7), 0.9)
    for num in range(8):
        count(known, ["helps", "gone"], float(num < 3), 0.1)
    hurts, helps = known["hurts"], known["helps"]
    assert (hurts["freq"], hurts["utility"], helps["freq"], helps["utility"]) == (10, 7, 8, 3)
    assert hurts["lift"] / hurts["lifts"] == pytest.approx(-0.2)
    assert helps["lift"] / helps["lifts"] == pytest.approx(0.275)
    error = math.sqrt(0.7 * 0.3 / 9)
    assert error < 0.2
    assert is_useless(hurts, "lift", 5, 0.5)
    assert not is_useless(helps, "lift", 5, 0.5)
    assert (is_useless(hurts, "utility", 5, 0.5), is_useless(helps, "utility", 5, 0.5)) == (
        False, True,
    )  # fmt: skip
    assert not is_useless(hurts, "lift", 11, 0.5)  # too few
    count(known, ["helps"], 1.0, None)  # a prompt without a history has no lift
    assert (helps["freq"], helps["lifts"]) == (9, 8)


def test_functions_of_the_same_words_become_one():
    known = made("sum_digits", freq=4)
    add(known, "digits_sum", "def digits_sum(x): return x\n", 2, 7)  # shorter: it stays
    assert [*known] == ["digits_sum"]
    assert (known["digits_sum"]["freq"], known["digits_sum"]["version"]) == (4, 7)
    add(known, "digits_sum", "def digits_sum(x):\n    y = x\n    return y\n", 3, 8)
    assert known["digits_sum"]["step"] == 2
    add(known, "digits", "def digits(x):\n    return x\n", 3, 8)
    assert len(known) == 2


def test_retrieval_is_bm25():
    documents = {
        "count_vowels": 'def count_vowels(text):\n    """Counts the vowels."""\n    return 1\n',
        "is_prime": 'def is_prime(n):\n    """Whether n is a prime number."""\n    return 2\n',
        "next_prime": "def next_prime(n):\n    return n if is_prime(n) else next_prime(n + 1)\n",
    }
    known = {}
    for name, text in documents.items():
        add(known, name, text, 1, 0)
    assert nearest(known, "Is 91 a prime number?", 3) == ["is_prime", "next_prime"]
    assert nearest(known, "How many vowels?", 3) == ["count_vowels"]
    assert nearest(known, "Is 91 a prime number?", 1) == ["is_prime"]
    assert nearest(known, "nothing", 3) == nearest({}, "prime", 3) == []
    # f / (f + k (1 - b + b length / mean length)): twice in 8 words, three times in 10, mean 8.67
    words = {n: library._words(t) for n, t in documents.items()}
    assert [(len(w), w.count("prime")) for w in words.values()] == [(8, 0), (8, 2), (10, 3)]
    assert nearest(known, "prime", 2) == ["next_prime", "is_prime"]


def test_a_function_is_stored_with_those_that_it_calls():
    known = {
        "twice": "def twice(x):\n    return add(x, x)\n", "add": "def add(a, b): return a + b\n",
        "other": "def other(): return 0\n",
    }  # fmt: skip
    assert whole("twice", known) == f"{known['add']}{known['twice']}"
    assert library.head_of(known["twice"]) == "def twice(x):"
    documented = 'def f(x):\n    """Says x.\n    Twice.\n    """\n    return x\n'
    assert library.head_of(documented) == documented.removesuffix("\n    return x\n")


DOUBLE = "def double(x):\n    return 2 * x\n"
WRITE = json.dumps({"code": f"{DOUBLE}print(double(4))"})
USE = json.dumps({"code": "print(double(21))"})


def test_scripted_answers_write_find_and_call_a_function(tmp_path):
    """Half of the actions write `double`, others call it; an episode has three."""
    answers = {f"call python {WRITE}": 0.4, f"call python {USE}": 0.4, "42": 0.2}
    model = save_scripted(tmp_path / "model", answers)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Please double 21.", "answer": "42"}\n' * 3, "utf-8")
    options = {"questions": str(questions), "tools": ["python"], "max_turns": 3, "max_tokens": 4}
    data = {"task": "tool_questions", "task_config": options, "train_size": 1}
    data |= {"validation_size": 1}
    method, world = world_of({"recipe": "grpo", "model": {"name": str(model)}, "data": data})
    part = PlayWithLibrary(**method.rollout.part.sampling(), prune="none")
    rng, state = torch.Generator().manual_seed(3), part.init()
    found = []
    for _ in range(2):
        for num in (2, 1):  # a second round of the step sees no more than the first
            draws = (Draw(world.pool[0], num),)
            found.append(rolled_out(part, draws, world.engine, world.services, rng, state))
            state = found[-1].state
        state = part.update(state)
    world.services.close()
    said = [world.services.texts.decode(f.batch["id_T"].tolist()) for f in found]
    shown = "These functions are there and can be called:\ndef double(x):\n\nYou have"
    assert [shown in text for text in said] == [False, False, True, True]
    kept = state["library"]["double"]
    assert [*state["library"]] == ["double"]
    assert (kept["text"], kept["step"], kept["version"]) == (DOUBLE, 1, 0)
    assert (kept["freq"], kept["lifts"]) == (3, 3)
    outcomes = [float(f.batch["reward_K"].sum()) for f in found]
    num, total = state["prompts"][world.pool[0]]
    assert (num, total) == (6, sum(outcomes))
    assert kept["utility"] == outcomes[2] + outcomes[3]
    before = (outcomes[0] + outcomes[1]) / 3
    assert kept["lift"] == pytest.approx(kept["utility"] - 3 * before)
    first, again, *later = (f.metrics for f in found)
    assert first["library/egl"] == first["library/egl_step"] > again["library/egl"] > 0
    assert [f["library/functions"] for f in (first, again, *later)] == [0, 0, 1, 1]
    assert [f["library/egl_step"] for f in later] == [0, 0]
    assert [f["library/shown"] for f in later] == [1, 1]
    assert state["calls"] > 4
    # a call in an episode that has not defined it fails at first, and not once it is stored
    results = ["result: 42" in text for text in said]
    failed = ["is not defined" in text for text in said]
    assert results[2] or results[3]
    assert failed[0] or failed[1]
    assert failed[2:] == [False, False]


def test_options_are_checked():
    with pytest.raises(UserError, match="lift, utility, none"):
        PlayWithLibrary(prune="never")
    with pytest.raises(UserError, match="must be at least 1"):
        PlayWithLibrary(top=0)
