"""Packed rows: the same prompts as a list of them, made on demand, small."""

import datetime
import json
import re
import tracemalloc

import pytest

from strop.data.prompt_rows import Pack, PromptRows, each, those, uids_of
from strop.data.prompts import MAX_SPLIT_ROWS, Prompt
from strop.environments.data_files import load_data
from strop.support.errors import UserError

WHEN = datetime.date(2024, 2, 29)


@pytest.fixture
def rows():
    """Five rows of two files; the second file has a column that the first lacks."""
    pack = Pack(1)
    pack.begin("a.jsonl", "prompt")
    pack.add("2+2=", {"answer": "4"}, "a.jsonl row 1")
    pack.add([{"role": "user", "content": "hi"}], {"answer": None}, "a.jsonl row 2")
    pack.begin("b.csv", "question")
    for number in range(3):
        pack.add(f"q{number}", {"level": number, "when": WHEN}, f"b.csv row {number + 1}")
    return PromptRows(pack)


def expected(row):
    """What a list of prompts would hold."""
    none = {"answer": None, "level": None, "when": None}
    first = MAX_SPLIT_ROWS
    return [
        Prompt(first, "2+2=", {**none, "answer": "4"}, "a.jsonl row 1"),
        Prompt(first + 1, [{"role": "user", "content": "hi"}], none, "a.jsonl row 2"),
        *(Prompt(first + 2 + n, f"q{n}", {**none, "level": n, "when": WHEN}, f"b.csv row {n + 1}",
                 "question") for n in range(3)),
    ][row]  # fmt: skip


def test_they_are_a_list_of_prompts(rows):
    whole = expected(slice(None))
    assert [*rows] == whole
    assert rows == whole
    assert len(rows) == 5
    assert list(rows[0].columns) == ["answer", "level", "when"]
    assert rows[-1] == whole[-1]
    assert rows[1:4] == whole[1:4]
    assert rows[::-2] == whole[::-2]
    assert rows != whole[:4]
    assert rows != [*whole[:4], whole[0]]
    assert rows != 5
    assert rows[:0] == []
    assert not rows[:0]
    with pytest.raises(IndexError):
        rows[5]


def test_those_and_their_uids(rows):
    chosen = those(rows, [4, 0])
    assert chosen == [expected(4), expected(0)]
    assert those(chosen, [1]) == those([*chosen], [1]) == [expected(0)]
    assert [*uids_of(chosen)] == [*uids_of([*chosen])] == [MAX_SPLIT_ROWS + 4, MAX_SPLIT_ROWS]


def test_a_change_is_made_when_a_prompt_is_asked_for(rows):
    seen = []

    def louder(prompt):
        seen.append(prompt.uid)
        return Prompt(prompt.uid, f"{prompt.prompt}!", prompt.columns)

    changed = each(rows, louder)
    assert seen == []
    assert changed[2].prompt == "q0!"
    assert those(changed, [3])[0].prompt == "q1!"
    assert seen == [MAX_SPLIT_ROWS + 2, MAX_SPLIT_ROWS + 3]
    assert [p.prompt for p in each([expected(4)], louder)] == ["q2!"]


def test_what_one_reader_changes_another_does_not_see(rows):
    rows[1].prompt.append("more")
    rows[1].columns["answer"] = "5"
    assert rows[1] == expected(1)


def test_a_value_that_cannot_be_kept_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(UserError, match=re.escape(f"{path} row 1 has a value that no reward")):
        load_data(path, reader=lambda row: {**row, "call": lambda: 1})


def test_rows_take_little_more_than_their_text(tmp_path):
    """Objects for each row would take five times as much."""
    path, size = tmp_path / "a.jsonl", 20_000
    rows = ({"prompt": f"{n}+{n}=", "answer": f"{2 * n}"} for n in range(size))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load_data(path)  # what is imported and cached
    tracemalloc.start()
    task = load_data(path, validation=100)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(task.train) == size - 100
    assert held < 2 * path.stat().st_size + 16 * size
