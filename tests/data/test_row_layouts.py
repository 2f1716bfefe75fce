"""Rows of verl, SkyRL and GSM8K reach the rewards under the names that those rewards expect."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from strop.data.row_layouts import final_answer
from strop.environments.data_files import load_data
from strop.rewards.grader import Grader
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError

CHAT = [{"role": "user", "content": "How many? Answer after ####."}]
# Rows as verl's own preparation of GSM8K writes them.
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": CHAT,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {"split": "train", "index": 0, "answer": "48 + 24 #### 72", "question": "How"},
}
SKYRL = {
    "data_source": "openai/gsm8k",
    "prompt": CHAT,
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "72"},
    "extra_info": {"split": "train", "index": 0},
}
GSM8K = {"question": "How many?", "answer": "She sold 48+24 = <<48+24=72>>72.\n#### 1,072"}


def parquet(path, *rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_verl_parquet_rows(tmp_path):
    (row,) = load_data(parquet(tmp_path / "train.parquet", VERL)).train
    assert row.prompt == CHAT
    assert row.columns["ground_truth"] == "72"
    assert row.columns["data_source"] == "openai/gsm8k"
    assert row.columns["extra_info"] == VERL["extra_info"]
    assert row.columns["reward_model"] == VERL["reward_model"]


def test_skyrl_rows_and_nested_json_text(tmp_path):
    (row,) = load_data(parquet(tmp_path / "train.parquet", SKYRL)).train
    assert (row.columns["ground_truth"], row.columns["env_class"]) == ("72", "gsm8k")
    text = {**VERL, "reward_model": json.dumps(VERL["reward_model"]), "extra_info": '{"index": 7}'}
    (row,) = load_data(jsonl(tmp_path / "text.jsonl", text)).train
    assert (row.columns["ground_truth"], row.columns["extra_info"]) == ("72", {"index": 7})
    others = [{**VERL, "extra_info": each} for each in ([["index", 7]], "page 7", None)]
    found = load_data(jsonl(tmp_path / "others.jsonl", *others)).train
    assert [row.columns["extra_info"] for row in found] == [[["index", 7]], "page 7", {}]


def test_question_and_answer_rows_keep_the_text(tmp_path):
    (row,) = load_data(jsonl(tmp_path / "gsm8k.jsonl", GSM8K)).train
    assert row.prompt == "How many?"
    assert row.columns == {"answer": GSM8K["answer"], "ground_truth": "1072"}
    own = [{**GSM8K, "ground_truth": each} for each in ("1,073", None)]
    found = load_data(jsonl(tmp_path / "own.jsonl", *own)).train
    assert [row.columns["ground_truth"] for row in found] == ["1,073", "1072"]
    problem = {"problem": "What is 3!?", "solution": "It is $\\boxed{6}$.", "answer": "6"}
    (row,) = load_data(jsonl(tmp_path / "problem.jsonl", problem)).train
    assert row.prompt == "What is 3!?"
    assert row.columns == {"solution": problem["solution"], "answer": "6", "ground_truth": "6"}


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("x #### 72", "72"),
        ("a #### 1\n#### -1,234.5 ", "-1234.5"),
        ("#### $20", "20"),
        ("#### 3, 4", "3, 4"),
        ("1,2", "1,2"),
        ("3,14", "3,14"),
        ("#### 1,234,567", "1234567"),
        ("Paris", "Paris"),
        (8, 8),
    ],
)
def test_final_answer(answer, final):
    assert final_answer(answer) == final


def test_a_layout_is_chosen_by_name_or_by_columns(tmp_path):
    both = {"prompt": "Q: How many?\nA:", **GSM8K}
    path = jsonl(tmp_path / "both.jsonl", both)
    (auto,) = load_data(path).train
    assert auto.prompt == both["prompt"]
    assert auto.columns["answer"] == GSM8K["answer"]
    assert "ground_truth" not in auto.columns
    (plain,) = load_data(parquet(tmp_path / "v.parquet", VERL), reader="prompt").train
    assert "ground_truth" not in plain.columns
    with pytest.raises(UserError, match=r"'varl' is unknown \(did you mean 'verl'\?\)"):
        load_data(path, reader="varl")
    with pytest.raises(UserError, match=r"both.jsonl row 1: a row has neither reward_model"):
        load_data(path, reader="verl")
    with pytest.raises(UserError, match=r"row 1: a row has no column 'question'"):
        load_data(jsonl(tmp_path / "p.jsonl", {"prompt": "x"}), reader="question")


USER, RIGHT, WRONG = CHAT[0], *({"role": "assistant", "content": text} for text in ("72", "71"))


def test_conversations_end_with_the_answer(tmp_path):
    rows = [{"messages": [USER, WRONG, USER, RIGHT], "level": 3}, {"messages": CHAT}]
    first, second = load_data(jsonl(tmp_path / "sft.jsonl", *rows)).train
    assert first.prompt == [USER, WRONG, USER]
    assert first.columns == {"completion": [RIGHT], "level": 3}
    assert (second.prompt, second.columns["completion"]) == (CHAT, None)
    pair = {"chosen": [USER, RIGHT], "rejected": [USER, WRONG]}
    (row,) = load_data(parquet(tmp_path / "pairs.parquet", pair)).train
    assert (row.prompt, row.columns) == (CHAT, {"chosen": [RIGHT], "rejected": [WRONG]})
    text = {**pair, "prompt": "How many?"}
    (row,) = load_data(jsonl(tmp_path / "text.jsonl", text), reader="messages").train
    assert row.prompt == CHAT


def test_conversations_of_sharegpt_are_read_as_messages(tmp_path):
    said = [("human", "How many?"), ("gpt", "71"), ("human", "Sure?"), ("gpt", "72")]
    turns = [{"from": who, "value": text} for who, text in said]
    rows = [
        {"conversations": turns, "system": "Count.", "id": "a"},
        {"conversations": turns[:1], "system": "", "id": "b"},
        {"conversations": [USER, RIGHT], "id": "c"},
    ]
    whole, asked, named = load_data(jsonl(tmp_path / "sft.jsonl", *rows)).train
    roles, texts = ("system", "user", "assistant", "user"), ("Count.", *(text for _, text in said))
    assert [(message["role"], message["content"]) for message in whole.prompt] == [
        *zip(roles, texts[:4], strict=True)
    ]
    assert whole.columns == {"completion": [RIGHT], "id": "a"}
    assert asked.prompt == [{"role": "user", "content": "How many?"}]
    assert asked.columns == {"completion": None, "id": "b"}
    assert (named.prompt, named.columns) == ([USER], {"completion": [RIGHT], "id": "c"})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"messages": "Hello"}, "'messages' of a row is no list of messages"),
        ({"conversations": "Hello"}, "no list of messages in 'messages' or 'conversations'"),
        ({"conversations": [{"from": "bot", "value": "7"}]}, "'bot', .* give it a value, and from"),
        ({"conversations": [{"from": "gpt"}]}, "a message of 'conversations' is .* one of system"),
        ({"chosen": [USER], "rejected": [USER]}, "'chosen' of a row does not end with the assist"),
        ({"chosen": [USER, RIGHT], "rejected": [USER, USER, WRONG]}, "differ before their last"),
    ],
)
def test_rows_that_are_no_conversations_are_refused(tmp_path, row, why):
    with pytest.raises(UserError, match=f"row 1: .*{why}"):
        load_data(jsonl(tmp_path / "wrong.jsonl", row))


REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "openai/gsm8k" and extra_info["split"] == "train"
    return float(solution_str.endswith(ground_truth))
"""


@pytest.mark.parametrize("row", [VERL, SKYRL])
def test_such_rows_with_their_own_reward_and_the_built_in_ones(tmp_path, row):
    (prompt,) = load_data(parquet(tmp_path / "train.parquet", row)).train
    (tmp_path / "score.py").write_text(REWARD)
    specs = [
        RewardSpec("own", f"{tmp_path}/score.py:compute_score"),
        RewardSpec("exact", "exact_match"),
        RewardSpec("math", "math_verify"),
    ]
    columns = {name: [value] * 2 for name, value in prompt.columns.items()}
    with Grader(specs) as grader:
        grades = grader.grade([prompt.prompt] * 2, ["\\boxed{72}", "so 72"], [[1]] * 2, columns)
    assert grades.failures == ()
    assert grades.scores_BM.tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]
