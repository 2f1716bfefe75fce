"""Reward functions as verl, OpenRLHF and verifiers write them, with the arguments of each."""

import pytest

from strop.rewards.forms import form_of, is_per_row
from strop.rewards.function import load_reward
from strop.rewards.grader import Grader
from strop.rewards.scored import Rollouts
from strop.rewards.source import RewardSpec, parse, reward_name, reward_names
from strop.support.errors import UserError
from strop.support.exits import Exit

VERL = """
import asyncio, re

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if data_source != "openai/gsm8k":
        raise NotImplementedError(f"no reward for {data_source!r}")
    answer = re.search(r"#### (\\-?[0-9\\.\\,]+)", solution_str)
    return 0.0 if answer is None else float(answer.group(1) == ground_truth)

def with_parts(data_source, solution_str, ground_truth, extra_info):
    right = solution_str == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str,
            "index": extra_info["index"]}

async def later(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0.02)
    if solution_str == "bad":
        raise ValueError("cannot be read")
    return float(solution_str == ground_truth)

def no_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"reward": 1.0}

async def refuses(solution_str, ground_truth):
    from strop.support.errors import UserError
    raise UserError("no key")

def in_numpy(solution_str, ground_truth):
    import numpy
    right = numpy.equal(solution_str, ground_truth)
    return {"score": numpy.float32(0.5), "acc": right, "size": numpy.int64(len(solution_str))}

def of_level(solution_str, ground_truth, level):
    return level if solution_str == ground_truth else 0

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def mute(solution_str, ground_truth):
    if solution_str == "bad":
        raise Mute
    return 1.0
"""

OPENRLHF = """
import torch

def reward_func(queries, prompts, labels, **kwargs):
    rewards = torch.tensor([
        float(query[len(prompt):] == label)
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ])
    lengths = torch.tensor([len(query) for query in queries])
    return {"rewards": rewards, "scores": rewards.clamp(0, 1), "extra_logs": {"length": lengths}}

def bare(queries, prompts, labels):
    return torch.ones(len(queries)) / 2

def lists(queries, prompts):
    return {"rewards": [len(query) for query in queries], "extra_logs": {"temperature": 0.5}}

def wrong(queries, prompts, labels):
    return {"reward": [1.0]}
"""

VERIFIERS = """
def exact(completion, answer):
    return float(completion[-1]["content"] == answer)

def parsed(parser, completion, answer, **kwargs):
    return 1.0 if parser.parse_answer(completion) == answer else 0.0

def with_state(prompt, completion, state, info, task):
    assert prompt is state["prompt"] and completion is state["completion"]
    return info["weight"] * (task == "sums") * len(state["answer"])

async def best_of_group(completions, answers, states, prompts):
    lengths = [len(c[-1]["content"]) for c in completions]
    assert len({str(prompt) for prompt in prompts}) == 1
    return [float(length == min(lengths)) for length in lengths]

def short_list(completions, states):
    return [1.0]
"""
FILES = {"verl_file": VERL, "openrlhf_file": OPENRLHF, "verifiers_file": VERIFIERS}


@pytest.fixture(autouse=True)
def files(loads_here):
    for name, text in FILES.items():
        (loads_here / f"{name}.py").write_text(text)
    return loads_here


def load(source, **options):
    return load_reward(RewardSpec(reward_name(source), source, **options))


def chat(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


def rollouts(completions, groups=(), prompts=None, **columns):
    num = len(completions)
    return Rollouts(
        range(num), prompts or ["p"] * num, completions, [[1]] * num, columns, 3, groups
    )


GSM8K = {
    "data_source": ["openai/gsm8k"] * 3,
    "ground_truth": ["72", "10", None],
    "ability": ["math"] * 3,
    "extra_info": [{"index": i, "split": "train"} for i in range(3)],
}


def test_verl_function_scores_rows_and_takes_the_text_of_a_chat():
    reward = load("verl_file.py:compute_score")
    assert (reward.caller.form, reward.rows_are_independent) == ("verl", True)
    scored = reward(rollouts(chat("so #### 72", "#### 11", "#### 5"), **GSM8K))
    assert scored.scores == [1.0, 0.0, None]  # no reference: not applicable
    assert scored.unscored == {}


def test_verl_row_that_raises_fails_alone():
    columns = {**GSM8K, "data_source": ["openai/gsm8k", "lighteval/MATH", "openai/gsm8k"]}
    scored = load("verl_file.py:compute_score")(rollouts(["#### 72", "x", "y"], **columns))
    assert scored.scores == [1.0, None, None]
    cause, why = scored.unscored[1]
    assert cause == Exit.EXCEPTION
    assert "NotImplementedError: no reward for 'lighteval/MATH'" in why
    assert "verl_file.py:6" in why


def test_each_row_has_its_own_reference_column():
    columns = {"ground_truth": ["72", None], "answer": ["so #### 72", "11"],
               "extra_info": [{"index": 0}, {"index": 1}]}  # fmt: skip
    assert load("verl_file.py:with_parts")(rollouts(["72", "11"], **columns)).scores == [1.0, 1.0]


def test_numbers_of_numpy_are_metrics_too():
    given = rollouts(["72", "1"], ground_truth=["72", "7"])
    scored = load("verl_file.py:in_numpy")(given)
    assert scored.scores == [0.5, 0.5]
    assert scored.metrics == {"rewards/in_numpy/acc": 0.5, "rewards/in_numpy/size": 1.5}


def test_extra_info_and_source_of_rows_that_lack_them_or_hold_text():
    one = {"ground_truth": ["72"], "data_source": [None]}
    (failure,) = load("verl_file.py:compute_score")(rollouts(["72"], **one)).unscored.values()
    assert "no reward for ''" in failure[1]
    reward = load("verl_file.py:with_parts")
    scored = reward(rollouts(["72"], **one, extra_info=['{"index": 4}']))
    assert scored.extra["with_parts/index"] == [4]
    with pytest.raises(UserError, match="column extra_info of a row is 'x': make it an object"):
        reward(rollouts(["72"], **one, extra_info=["x"]))
    columns = {"answer": ["1"], "info": [""]}
    assert load("verifiers_file.py:exact")(rollouts(chat("1"), **columns)).scores == [1.0]


def test_a_refusal_of_an_async_row_is_no_failure_of_the_row():
    with pytest.raises(UserError, match="no key"):
        load("verl_file.py:refuses")(rollouts(["a"], answer=["a"]))


def test_verl_dict_gives_metrics_and_columns():
    scored = load("verl_file.py:with_parts")(rollouts(["72", "11", "5"], **GSM8K))
    assert scored.scores == [1.0, -1.0, None]
    assert scored.metrics == {"rewards/with_parts/acc": 0.5, "rewards/with_parts/index": 0.5}
    assert scored.extra == {
        "with_parts/acc": [True, False, None],
        "with_parts/pred": ["72", "11", None],
        "with_parts/index": [0, 1, None],
    }


def test_an_error_that_has_no_text_costs_its_row_alone():
    scored = load("verl_file.py:mute")(rollouts(["a", "bad"], ground_truth=["a", "a"]))
    assert scored.scores == [1.0, None]
    ((row, (cause, why)),) = scored.unscored.items()
    assert row == 1
    assert (cause, why.split(" (")[0]) == (Exit.EXCEPTION, "Mute, which cannot be written as text")


def test_verl_async_rows_run_together_and_fail_alone():
    with Grader([RewardSpec("later", "verl_file.py:later")]) as grader:
        texts = ["a", "bad"] * 32
        columns = {"answer": ["a"] * 64}  # the reference may also be called answer
        grades = grader.grade(["p"] * 64, texts, [[1]] * 64, columns)
    assert grader.specs[0].rows_are_independent
    assert grades.scored_B.tolist() == [True, False] * 32
    assert grades.scores_BM[::2, 0].tolist() == [1.0] * 32
    assert {f.message.split(" (")[0] for f in grades.failures} == {"ValueError: cannot be read"}
    assert [f.row for f in grades.failures] == list(range(1, 64, 2))
    assert grades.seconds < 1.0  # one after the other: 1.3 seconds


def test_verl_function_may_ask_for_columns():
    level = {"level": [3, 5]}
    reward = load("verl_file.py:of_level")
    assert reward(rollouts(["a", "x"], ground_truth=["a", "b"], **level)).scores == [3.0, 0.0]
    with pytest.raises(UserError, match="needs the parameter 'ground_truth'"):
        load("verl_file.py:of_level")(rollouts(["a", "x"], truth=["a", "b"], **level))
    with pytest.raises(UserError, match="needs the parameter 'level'"):
        load("verl_file.py:of_level")(rollouts(["a"], answer=["a"]))
    with pytest.raises(UserError, match="dict with reward: it must have the key 'score'"):
        load("verl_file.py:no_score")(rollouts(["a"], answer=["a"]))


def test_openrlhf_function_sees_queries_and_logs():
    given = rollouts(["4", "55"], prompts=["2+2=", "3+2="], label=["4", "5"])
    reward = load("openrlhf_file.py:reward_func")
    assert (reward.caller.form, reward.rows_are_independent) == ("openrlhf", False)
    scored = reward(given)
    assert scored.scores == [1.0, 0.0]
    assert scored.metrics["rewards/reward_func/length"] == 5.5  # 5 and 6 characters
    assert scored.metrics["rewards/reward_func/scores"] == 0.5
    assert scored.extra["reward_func/length"] == [5, 6]
    assert load("openrlhf_file.py:bare")(given).scores == [0.5, 0.5]
    scored = load("openrlhf_file.py:lists")(given)
    assert scored.scores == [5.0, 6.0]
    assert scored.metrics == {"rewards/lists/temperature": 0.5}
    assert scored.extra == {}
    with pytest.raises(UserError, match="dict with reward: it must have the key 'rewards'"):
        load("openrlhf_file.py:wrong")(given)


def test_openrlhf_messages_come_as_the_model_saw_them():
    messages = [[{"role": "user", "content": "2+2"}]]
    with Grader([RewardSpec("r", "openrlhf_file.py:reward_func")]) as grader:
        grades = grader.grade(
            messages, ["4"], [[1]], {"label": ["4"]}, prompt_texts=["<user>2+2<assistant>"]
        )
        assert grades.scores_BM.tolist() == [[1.0]]
        assert grades.extra["r/length"] == [21]
        with pytest.raises(UserError, match="messages without their text"):
            grader.grade(messages, ["4"], [[1]], {"label": ["4"]})


def test_verifiers_functions_get_arguments_by_name():
    given = rollouts(chat("4", "5"), prompts=chat("q", "r"), answer=["4", "4"])
    reward = load("verifiers_file.py:exact")
    assert (reward.caller.form, reward.rows_are_independent) == ("verifiers", True)
    assert reward(given).scores == [1.0, 0.0]
    assert load("verifiers_file.py:parsed")(given).scores == [1.0, 0.0]
    columns = {"answer": ["123"], "info": ['{"weight": 0.5}'], "task": ["sums"]}
    scored = load("verifiers_file.py:with_state")(rollouts(chat("x"), **columns))
    assert scored.scores == [1.5]


def test_verifiers_group_functions_see_one_group_at_a_time():
    given = rollouts(
        chat("aa", "b", "cc", "dddd"),
        groups=[0, 1, 0, 1],
        prompts=["p", "q", "p", "q"],
        answer=["x"] * 4,
    )
    reward = load("verifiers_file.py:best_of_group")
    assert not reward.rows_are_independent
    assert reward(given).scores == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(UserError, match="gave 1 scores for a group of 2"):
        load("verifiers_file.py:short_list")(given)


def test_a_parser_of_the_functions_own_file_is_used(files):
    (files / "own.py").write_text(
        "class Last:\n    def parse_answer(self, completion):\n"
        "        return completion[-1]['content'].split()[-1]\nparser = Last()\n"
        "def right(completion, answer, parser):\n"
        "    return parser.parse_answer(completion) == answer\n"
    )
    assert load("own.py:right")(rollouts(chat("so 4"), answer=["4"])).scores == [1.0]


@pytest.mark.parametrize(
    ("names", "form"),
    [
        ("prompts completions", "trl"),
        ("completions answers", "trl"),
        ("completions state", "trl"),  # a column named state
        ("completions data_source ground_truth extra_info", "trl"),
        ("answer", "trl"),
        ("", "trl"),
        ("data_source solution_str ground_truth extra_info", "verl"),
        ("queries prompts labels", "openrlhf"),
        ("prompt completion answer state", "verifiers"),
        ("state", "verifiers"),
        ("parser answer", "verifiers"),
        ("completions states", "verifiers"),
        ("prompts completions answers states infos tasks parser", "verifiers"),
    ],
)
def test_forms_are_told_by_parameters(names, form):
    assert form_of(set(names.split()), "f") == form
    assert is_per_row(form, set(names.split())) == (
        form == "verl" or (form == "verifiers" and "states" not in names)
    )


@pytest.mark.parametrize(
    "names",
    [
        "prompt completions prompt_ids completion_ids",  # another framework's
        "completions solution_str",
        "queries completions",
        "queries solution_str",
        "completion completions",
    ],
)
def test_mixed_forms_are_refused_with_all_forms_and_the_remedy(names):
    with pytest.raises(UserError) as caught:
        form_of(set(names.split()), "mine.py:f")
    message = str(caught.value)
    assert "mine.py:f mixes" in message
    for word in ("TRL", "verl", "OpenRLHF", "verifiers", "solution_str", "trl:"):
        assert word in message


def test_a_form_before_the_source_decides(files):
    (files / "mixed.py").write_text(
        "def f(completions, queries):\n    return [float(q == c) for q, c in "
        "zip(queries, completions)]\n"
    )
    with pytest.raises(UserError, match=r"mixes parameters of .* forms \(completions, queries\)"):
        load("mixed.py:f")
    reward = load("trl:mixed.py:f")  # queries is a column
    assert reward(rollouts(["a", "b"], queries=["a", "c"])).scores == [1.0, 0.0]
    assert reward.spec.name == "f"
    assert parse("verl:compute_score").form == ""  # a module of that name


def test_parameters_of_no_form_list_the_forms(files):
    (files / "other.py").write_text("async def custom_rm(args, sample):\n    return 1.0\n")
    with pytest.raises(UserError, match=r"'args'.*as in TRL.*as in verl.*OpenRLHF.*verifiers"):
        load("other.py:custom_rm").check(["answer"])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("exact_match(loose=true)", "takes no options"),
        ("run_tests(second=3)", r"no option 'second' \(did you mean 'seconds'\?\)"),
        ("run_tests(3)", "options are written option=value"),
        ("run_tests(seconds=)", "cannot read its options"),
        ("run_tests(seconds=2),run_python()", "after a name stand its options alone"),
        ("run_tests(seconds=2)(memory_mb=3)", "after a name stand its options alone"),
        ("model:", "unknown reward"),
        ("trl:r.py", "is a file: name the function in it, trl:r.py:FUNCTION"),
    ],
)
def test_options_of_sources(source, expected):
    with pytest.raises(UserError, match=expected):
        load_reward(RewardSpec("r", source))


def test_names_of_sources():
    assert reward_name("a/b.py:f") == "f"
    assert reward_name("run_tests(seconds=2)") == "run_tests"
    assert reward_name('model:some/org-model(device="cuda:1")') == "org-model"
    assert reward_name("judge:judges/help.toml") == "help"
    assert reward_name("model:org/RM-Qwen3-0.6B") == "RM-Qwen3-0.6B"


def test_rewards_of_one_name_are_numbered():
    given = ["a.py:f", "b.py:f", "a.py:f_2", "model:org/f", "trl:m:get(n=1)", "trl:m:get(n=2)"]
    assert reward_names(given) == ["f", "f_3", "f_2", "f_4", "get", "get_2"]
    assert reward_names(["a.py:f", "a.py:f"]) == ["f", "f"]  # which the grader refuses


FACTS = """
import os, time
from strop.rewards.scored import Unscored

def pieces(completions):
    return [len(completions)] * len(completions)

pieces.rows_are_independent = True

def slow(completions):
    time.sleep(0.6)
    return [1.0] * len(completions)

slow.timeout_seconds = 30.0

def careful(completions):
    return [Unscored("no text") if not text else 1.0 for text in completions]
"""


def test_a_function_says_that_its_rows_are_independent_and_what_time_it_needs(files):
    (files / "facts.py").write_text(FACTS)
    specs = [RewardSpec(name, f"facts.py:{name}") for name in ("pieces", "slow")]
    with Grader(specs, timeout_seconds=0.2) as grader:
        grades = grader.grade(["p"] * 70, ["a"] * 70, [[1]] * 70, {})
    assert grades.failures == ()
    assert grades.scores_BM[:, 0].tolist() == [64.0] * 64 + [6.0] * 6
    assert grades.scores_BM[:, 1].tolist() == [1.0] * 70


@pytest.mark.parametrize("seconds", ["1e7", "float('inf')"])
def test_a_function_may_take_any_time(files, seconds):
    (files / "facts.py").write_text(f"{FACTS}\npieces.timeout_seconds = {seconds}")
    with Grader([RewardSpec("pieces", "facts.py:pieces")], timeout_seconds=1e9) as grader:
        grader.check([])
        assert grader.grade(["p"] * 2, ["a"] * 2, [[1]] * 2, {}).failures == ()


@pytest.mark.parametrize("seconds", ["'60'", "-1", "True", "float('nan')"])
def test_a_time_limit_that_is_none_is_refused(files, seconds):
    (files / "facts.py").write_text(f"{FACTS}\npieces.timeout_seconds = {seconds}")
    with pytest.raises(UserError, match=r"pieces has timeout_seconds = .*: make it a positive"):
        Grader([RewardSpec("pieces", "facts.py:pieces")])


@pytest.mark.parametrize("name", ["exact_match", "math_verify"])
def test_rows_of_built_in_rewards_are_independent(name):
    with Grader([RewardSpec(name, name)], num_workers=2) as grader:
        assert grader.specs[0].rows_are_independent


def test_any_function_may_leave_a_row_unscored(files):
    (files / "facts.py").write_text(FACTS)
    with Grader([RewardSpec("careful", "facts.py:careful")]) as grader:
        grades = grader.grade(["p"] * 3, ["a", "", "b"], [[1]] * 3, {})
    assert grades.scored_B.tolist() == [True, False, True]
    (failure,) = grades.failures
    assert (failure.row, failure.cause, failure.message) == (1, Exit.DECLARED, "no text")
