"""Thousands of damaged data files, judges and names of rewards: rows, or one UserError."""

import json
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doors import TEXTS, Outcomes, damaged, seeded, tries, wrong
from models import tokenizer

from strop.data.encode import encode_prompt
from strop.environments.base import source_of
from strop.environments.data_files import load_data
from strop.environments.replay import Replay
from strop.rewards.judge import read_settings
from strop.rewards.source import find, parse, reward_name

ROWS = (
    {"prompt": "1+2=", "answer": 3},
    {"prompt": [{"role": "user", "content": "1+2="}], "answer": None},
    {"question": "1+2=", "answer": "so #### 3"},
    {"prompt": "1", "reward_model": {"ground_truth": "3"}, "extra_info": {"index": 1}},
    {"prompt": [{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]},
)
JUDGE = (
    'base_url = "http://127.0.0.1:9"\nmodel = "m"\nprompt = "{prompt}"\nscore = "(1)"\n'
    "timeout_seconds = 5\nconcurrency = 2\nscale = [0, 1]\nretries = 1\ntemperature = 0.0\n"
)
REPLAY = {"steps": [{"observation": "x", "action": "a b"}, {"observation": "y", "action": "c"}]}


def row(rng):
    """A row with values of any kind in some places."""
    found = json.loads(json.dumps(rng.choice(ROWS)))
    for _ in range(rng.choice((0, 1, 1, 2))):
        place = found
        key = rng.choice([*place])
        while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
            place = place[key]
            key = rng.choice([*place]) if isinstance(place, dict) else rng.randrange(len(place))
        place[key] = wrong(rng)
        if isinstance(place, dict) and rng.random() < 0.3:
            place[rng.choice(TEXTS)] = place.pop(key)
    return found


def as_json(value):
    return json.dumps(value, default=str, skipkeys=True)


def load(path, reader):
    """The rows, their prompts as a model of characters reads them."""
    task = load_data([path], reader=reader, validation=1)
    for prompt in (*task.train, *task.validation):
        encode_prompt(prompt, TOKENIZER)


TOKENIZER = tokenizer()
READERS = ("auto", "auto", "prompt", "question", "verl", "messages", "x")


def test_json_lines_and_csv(tmp_path):
    outcomes, rng = Outcomes(), seeded(0)
    for number in tries(1500):
        path = tmp_path / ("rows.jsonl" if number % 3 else "rows.csv")
        rows = [row(rng) for _ in range(3)]
        if number % 3:
            text = "\n".join(map(as_json, rows))
        else:
            text = "prompt,answer\n" + "\n".join(f"{as_json(r)},{wrong(rng)}" for r in rows[:1] * 3)
        data = text.encode("utf-8", "surrogatepass")
        path.write_bytes(damaged(data, rng) if rng.random() < 0.4 else data)
        outcomes.of(load, path, rng.choice(READERS))
    outcomes.check()


def test_parquet(tmp_path):
    outcomes, rng = Outcomes(), seeded(1)
    columns = (
        ["1", "2", "3"], [1, 2, 3], [None, "2", "3"], [b"1", b"2", b"3"], [1.5, None, 2.0],
        [["1"], [], ["2"]], [[{"role": "user", "content": "1"}]] * 3, [{"a": 1}] * 3, [True] * 3,
    )  # fmt: skip
    for _ in tries(120):
        names = rng.sample(("prompt", "question", "answer", "prompts", "", "é"), 3)
        given = {name: rng.choice(columns) for name in names}
        if rng.random() < 0.3:  # rows that may be right, or nearly so
            given["prompt"] = columns[0]
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table(given), path)
        if rng.random() < 0.5:
            path.write_bytes(damaged(path.read_bytes(), rng))
        outcomes.of(load, path, rng.choice(READERS))
    outcomes.check()


def test_judges_and_trajectories(tmp_path):
    outcomes, rng = Outcomes(), seeded(2)
    keys = [line.partition(" =")[0] for line in JUDGE.splitlines()]
    for number in tries(160):
        text = JUDGE
        if number % 2:
            key = rng.choice(keys)
            lines = [line for line in JUDGE.splitlines() if not line.startswith(key)]
            text = "\n".join([*lines, f"{key} = {as_json(wrong(rng))}"])
        path = tmp_path / "judge.toml"
        data = text.encode("utf-8", "surrogatepass")
        path.write_bytes(data if number % 2 else damaged(data, rng))
        outcomes.of(read_settings, path)
        path = tmp_path / f"replay-{number}.jsonl"
        first, second = REPLAY["steps"]
        bent = {**second, rng.choice([*second]): wrong(rng)} if rng.random() < 0.8 else wrong(rng)
        lines = {"steps": [first, bent]} if number % 2 else REPLAY
        data = as_json(lines).encode("utf-8", "surrogatepass")
        path.write_bytes(data if number % 2 else damaged(data, rng))
        outcomes.of(Replay, str(path))
    outcomes.check()


def test_names_of_rewards_and_tasks():
    outcomes, rng = Outcomes(), seeded(3)
    names = ("math_verify", "exact_match", "run_tests", "x.py:f", "os:system", "json:loads",
             "model:none", "judge:none.toml", "verl:x.py:f", "strop.nothing:f")  # fmt: skip
    for _ in tries(300):
        text = rng.choice(names) + rng.choice(("", "", f"(x={wrong(rng)!r})", rng.choice(TEXTS)))
        outcomes.of(reward_name, text)
        if (source := outcomes.of(parse, text)) is not None and source.kind != "model":
            with warnings.catch_warnings(action="ignore"):
                outcomes.of(find, source)
        task = rng.choice(("corridor", "hidden_number", "calculator", "none.py:A", "countdown"))
        options = {rng.choice(("length", "style", "max_turns", "x")): wrong(rng)}
        if (source := outcomes.of(source_of, task, options)) is not None:
            outcomes.of(source.make)
    outcomes.check()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_folders_and_places_that_are_none(name, tmp_path):
    outcomes = Outcomes()
    (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("")
    for path in (
        tmp_path / name,
        tmp_path / "file" / name,
        tmp_path / "none" / name,
        "\0",
        "x" * 999,
    ):
        outcomes.of(load, path, "auto")
    assert outcomes.refused["load"] == 5
