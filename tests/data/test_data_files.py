"""Rows of users' files: equal from every format, split without overlap, refused with a place."""

import csv
import json
import math
import sys
import types

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.data.prompts import MAX_SPLIT_ROWS
from strop.data.read import named_sources
from strop.data.row_files import JsonLines
from strop.environments.data_files import load_data
from strop.support.errors import UserError

ROWS = [
    {"prompt": "2+2=", "answer": "4", "note": "a,b"},
    {"prompt": 'say "hi",\nplease', "answer": "hi", "note": "ü"},
    {"prompt": "3*5=", "answer": "15", "note": ""},
]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def test_a_last_line_needs_no_end(tmp_path):
    for end in ("", "\n", "\n\n"):
        (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n{"prompt": "y"}' + end, "utf-8")
        assert len(JsonLines(tmp_path / "a.jsonl")) == 2


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_json(path, rows):
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return path


WRITERS = {"jsonl": write_jsonl, "json": write_json, "csv": write_csv, "parquet": write_parquet}


def rows_of(prompts):
    return [{"prompt": p.prompt, **p.columns} for p in prompts]


def refusal(*args, **kwargs):
    with pytest.raises(UserError) as caught:
        load_data(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path, kind):
    task = load_data(WRITERS[kind](tmp_path / f"rows.{kind}", ROWS))
    assert task.name == "rows"
    assert rows_of(task.train) == ROWS
    assert [p.uid for p in task.train] == [0, 1, 2]
    assert (task.validation, task.heldout) == ([], [])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_messages_lose_only_keys_that_are_none(tmp_path, kind):
    tool = [{"role": "user", "content": "hi", "name": "ann"}]
    path = WRITERS[kind](tmp_path / f"chat.{kind}", [{"prompt": CHAT}, {"prompt": tool}])
    assert [p.prompt for p in load_data(path).train] == [CHAT, tool]


def test_columns_that_a_row_lacks_are_none(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "x"}, {"prompt": "y", "level": 3}])
    assert [p.columns for p in load_data(path).train] == [{"level": None}, {"level": 3}]


def test_each_row_is_renamed_by_its_own_columns(tmp_path):
    rows = [{"prompt": "x", "answer": "1"}, {"prompt": "y", "solution": "2"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    task = load_data(path, columns={"solution": "answer"}, uses_columns=True)
    assert [p.columns for p in task.train] == [{"answer": "1"}, {"answer": "2"}]


def test_a_column_to_rename_may_be_in_one_file_of_all(tmp_path):
    train = write_jsonl(tmp_path / "a.jsonl", [{"question": "x", "solution": "1"}])
    other = write_jsonl(tmp_path / "b.jsonl", [{"prompt": "y", "ground_truth": "2"}])
    names = {"question": "prompt", "solution": "answer"}
    for others in ({"validation": [other]}, {"sets": {"easy": [other]}}):
        task = load_data(train, columns=names, uses_columns=True, **others)
        assert [p.columns for p in task.train] == [{"answer": "1"}]
        assert [p.columns for p in (*task.validation, *task.sets.get("easy", ()))] == [
            {"ground_truth": "2"}
        ]
    with pytest.raises(UserError, match=r"renames 'label', which .*a\.jsonl does not have"):
        load_data(train, columns={**names, "label": "kind"}, validation=[other])


def test_files_without_a_name_of_their_own_get_one_each():
    def names(*given):
        return [name for name, _ in named_sources(given)]

    assert names("a.jsonl", "x/a.jsonl", "a-1.jsonl") == ["a-2", "a-3", "a-1"]
    assert names("a.jsonl", "x/a.csv") == ["a-1", "a-2"]
    assert names("hf:org/set-v1.5", "runs/data.v2", "b.v2.JSONL") == ["set-v1.5", "data.v2", "b.v2"]


def test_a_field_of_a_table_may_be_long(tmp_path):
    rows = [{**ROWS[0], "note": "x" * 140_000}]
    assert rows_of(load_data(write_csv(tmp_path / "a.csv", rows)).train) == rows


def test_folders_above_a_file_are_no_columns(tmp_path):
    (tmp_path / "answer=wrong").mkdir()
    path = tmp_path / "answer=wrong" / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x"]}), path)
    assert [p.columns for p in load_data(path).train] == [{}]


def test_several_files_and_files_as_splits(tmp_path):
    one = write_jsonl(tmp_path / "one.jsonl", ROWS)
    two = write_csv(tmp_path / "two.csv", ROWS[:1])
    task = load_data([one, str(two)], validation=two, heldout=[one])
    assert task.name == "one+two"
    assert rows_of(task.train) == [*ROWS, ROWS[0]]
    assert [p.uid for p in task.validation] == [MAX_SPLIT_ROWS]
    assert [p.uid for p in task.heldout] == [2 * MAX_SPLIT_ROWS + i for i in range(3)]


@given(
    num_rows=st.integers(8, 60),
    validation=st.one_of(st.integers(0, 3), st.sampled_from([0.0, 0.2, 0.25])),
    heldout=st.integers(0, 3),
)
def test_carved_splits_are_a_partition_and_repeatable(
    tmp_path_factory, num_rows, validation, heldout
):
    rows = [{"prompt": f"p{i}"} for i in range(num_rows)]
    path = write_jsonl(tmp_path_factory.mktemp("carve") / "rows.jsonl", rows)
    task = load_data(path, validation=validation, heldout=heldout)
    again = load_data(path, validation=validation, heldout=heldout)
    assert (task.train, task.validation, task.heldout) == (
        again.train,
        again.validation,
        again.heldout,
    )
    whole = sorted([*task.train, *task.validation, *task.heldout], key=lambda p: p.uid)
    assert [p.prompt for p in whole] == [f"p{i}" for i in range(num_rows)]
    assert [p.uid for p in whole] == list(range(num_rows))
    expected = validation if isinstance(validation, int) else round(validation * num_rows)
    assert (len(task.validation), len(task.heldout)) == (expected, heldout)


def test_reader_and_prompt_column_translate_other_layouts(tmp_path):
    path = write_jsonl(tmp_path / "q.jsonl", [{"question": "2+2?", "answer": "4"}])
    by_name = load_data(path, prompt_column="question").train
    by_reader = load_data(path, reader=lambda r: {"prompt": r["question"], "answer": r["answer"]})
    assert rows_of(by_name) == rows_of(by_reader.train) == [{"prompt": "2+2?", "answer": "4"}]


def test_missing_file_names_its_neighbour(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    message = refusal(tmp_path / "trian.jsonl")
    assert "trian.jsonl does not exist (did you mean 'train.jsonl'?)" in message
    assert "does not exist: check" in refusal(tmp_path / "no" / "folder.jsonl")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "x", "unknown extension '.txt'"),
        ("a.jsonl", "", "has no rows"),
        ("a.jsonl", "\n\n", "has no rows"),
        ("a.csv", "prompt,answer\n", "has no rows"),
        ("a.csv", "", "has no rows"),
        (
            "a.jsonl",
            '{"prompt": "x"}\n{"prompt": \n',
            "line 2 is not valid JSON (Expecting value at column 11)",
        ),
        (
            "a.jsonl",
            '{"prompt": "x"}\n{"prompt": "x", "prompt": "y"}\n',
            "line 2 is not valid JSON (the key 'prompt' stands in one object twice)",
        ),
        ("a.jsonl", '{"prompt": "x"}\n\n{"prompt": "y"}\n', "line 2 is empty"),
        ("a.jsonl", '["prompt"]\n', "line 1 is a JSON list, not an object"),
        ("a.jsonl", '{"promt": "x", "b": 1}\n', "no column 'prompt' (did you mean 'promt'?)"),
        ("a.jsonl", '{"promt": "x", "b": 1}\n', "its columns are promt, b"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 7}\n', "row 2 has a prompt of type int"),
        ("a.jsonl", '{"prompt": ""}\n', "row 1 has an empty prompt"),
        ("a.jsonl", '{"prompt": []}\n', "empty list of messages"),
        ("a.jsonl", '{"prompt": ["hi"]}\n', "row 1, message 1 is str"),
        ("a.jsonl", '{"prompt": [{"content": "x"}]}\n', "message 1 has no 'role'"),
        ("a.jsonl", '{"prompt": [{"role": "user", "text": "x"}]}\n', "has no 'content'"),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": 3}]}\n', "is not text"),
        ("a.jsonl", '{"prompt": "x", "completions": 1}\n', "a column 'completions'"),
        ("a.json", " [ ]\n", "has no rows"),
        ("a.json", '[{"prompt": "x"},\n]', "(Expecting ',' or ']' at column 17): write one list"),
        ("a.json", '[{"prompt": "x"},\n{"prompt": }]', "(Expecting value at line 2, column 12)"),
        ("a.json", '[{"prompt": "x"}\n', "(Expecting ',' or ']' at column 17)"),
        ("a.json", '[{"prompt": "x"}] []', "(Extra data behind the list at column 18)"),
        ("a.json", '[{"prompt": "x"},\n3]', "row 2, from line 2, is a JSON int, not an object"),
        ("a.json", '[\n{"a": 1, "a": 2}]', "row 1, from line 2, is not valid JSON (the key 'a' st"),
        ("a.json", '{"data": []}', "no column 'prompt'; its columns are data"),
        ("a.csv", "prompt,answer\nx,1\ny,2,3\n", "line 3 has 3 fields, the header has 2"),
        ("a.csv", 'prompt,answer\n"x\ny",1\nz\n', "line 4 has 1 fields"),
        ("a.csv", "prompt,answer\nx,1\n\ny,2\n", "line 3 is empty"),
        ("a.csv", "prompt,prompt\nx,1\n", "line 1 names a column twice"),
        ("a.csv", 'prompt\n"open\n', "is not valid CSV"),
        ("a.parquet", "not parquet at all", "is not a readable Parquet file"),
    ],
)
def test_malformed_files_are_refused_with_the_place(tmp_path, name, text, expected):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    message = refusal(path)
    assert expected in message
    assert str(path) in message


def test_empty_lines_at_the_end_and_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "x"}\r\n\r\n\n')
    assert [p.prompt for p in load_data(path).train] == ["x"]
    path.rename(tmp_path / "a.json")
    assert [p.prompt for p in load_data(tmp_path / "a.json").train] == ["x"]
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf\r\n[{"prompt": "x"}]\r\n')
    assert [p.prompt for p in load_data(tmp_path / "a.json").train] == ["x"]
    table = tmp_path / "a.csv"
    table.write_bytes(b"\xef\xbb\xbfprompt\r\nx\r\n\r\n")
    assert [p.prompt for p in load_data(table).train] == ["x"]


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n')
    assert "is not UTF-8 text" in refusal(path)


@pytest.mark.parametrize("validation", [3, 5, 1.5, -1, 0.1, True, math.nan])
def test_a_validation_split_that_cannot_be_carved(tmp_path, validation):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    assert "validation" in refusal(path, validation=validation)


def test_no_file_at_all():
    assert "no data file" in refusal([])


def test_folder_without_and_with_the_datasets_package(tmp_path, monkeypatch):
    saved = datasets.Dataset.from_list(ROWS)
    assert "datasets did not save" in refusal(tmp_path)
    (tmp_path / "dataset_info.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'strop[data]'" in refusal(tmp_path)
    module = types.SimpleNamespace(load_from_disk=lambda path: saved)
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert rows_of(load_data(tmp_path).train) == ROWS
    module.load_from_disk = lambda path: {"train": ROWS, "test": ROWS}
    assert f"give one of {tmp_path / 'train'}" in refusal(tmp_path)


def test_a_date_that_python_does_not_know_is_named(tmp_path):
    dates = pyarrow.array([10**15], pyarrow.timestamp("s"))
    pyarrow.parquet.write_table(
        pyarrow.table({"prompt": ["a"], "at": dates}), tmp_path / "a.parquet"
    )
    with pytest.raises(UserError, match=r"a\.parquet is not a readable Parquet file"):
        load_data(tmp_path / "a.parquet")
