"""Rows too many to hold in memory: the same prompts, read from the file, refused when reached."""

import re
import struct

import pytest
from test_data_files import write_csv, write_jsonl, write_parquet

from strop.data import file_content, prompt_rows, row_tables
from strop.data.prompt_rows import PromptRows, pool_of
from strop.environments.data_files import load_data
from strop.support.errors import UserError
from strop.training.record.fingerprint import fingerprint

WRITERS = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet}
ROWS = [{"prompt": f'say "{n}",\nplease', "answer": f"ü{n}"} for n in range(40)]


@pytest.fixture
def few(monkeypatch):
    """Eleven rows are many, and a hundred bytes; two rows of a table are read at once."""
    monkeypatch.setattr(prompt_rows, "LOOKED_AT", 10)
    monkeypatch.setattr(file_content, "HELD", 100)
    monkeypatch.setattr(file_content, "CHUNK", 64)
    monkeypatch.setattr(row_tables, "ROWS_AT_ONCE", 2)


def held(path, **given):
    """The same rows as they are where few are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_rows, "LOOKED_AT", 10**6)
        return load_data(path, **given)


@pytest.mark.parametrize("kind", WRITERS)
def test_they_are_those_of_a_file_that_is_held(kind, few, tmp_path):
    path = WRITERS[kind](tmp_path / f"a.{kind}", ROWS)
    other = WRITERS[kind](tmp_path / f"b.{kind}", ROWS[:5])
    given = {"validation": 6, "heldout": 3, "columns": {"answer": "wanted"}}
    task, same = load_data([path, other], **given), held([path, other], **given)
    assert isinstance(task.train.pack, prompt_rows.Many)
    assert isinstance(same.train.pack, prompt_rows.Pack)
    assert (task.train, task.validation, task.heldout) == (
        same.train, same.validation, same.heldout
    )  # fmt: skip
    assert task.train[-1].place == f"{other} row 4"  # row 5 is set aside
    assert [*prompt_rows.uids_of(task.train)] == [p.uid for p in same.train]


def test_a_wrong_row_is_named_when_it_is_met(few, tmp_path):
    """Of 40 rows every fourth is looked at; line 3 and row 7 are not, line 5 is."""
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    lines = path.read_text().splitlines()
    lines[2], lines[6] = '{"prompt": ', '{"prompt": 7}'
    path.write_text("\n".join(lines))
    task = load_data(path)
    assert task.train[1].columns["answer"] == "ü1"
    with pytest.raises(UserError, match=rf"{re.escape(str(path))} line 3 is not valid JSON"):
        task.train[2]
    with pytest.raises(UserError, match="row 7 has a prompt of type int"):
        task.train[6]
    lines[4] = "[]"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match="line 5 is a JSON list"):
        load_data(path)


def test_columns_are_those_of_the_rows_looked_at_and_the_rows_own(few, tmp_path):
    rows = [{"prompt": str(n), **({"late": n} if n in (8, 9) else {})} for n in range(20)]
    rows[3]["odd"] = 1
    train = load_data(write_jsonl(tmp_path / "a.jsonl", rows)).train
    assert [train[n].columns for n in (0, 3, 9)] == [
        {"late": None}, {"late": None, "odd": 1}, {"late": 9}
    ]  # fmt: skip


def test_a_file_that_changes_is_noticed(few, tmp_path):
    """While it is read; and, where only rows are another that nobody looked at, on a resume."""
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    task = load_data(path)
    before = fingerprint(task)
    assert fingerprint(load_data(path)) == before
    path.write_text(path.read_text().replace('say \\"2\\"', 'say \\"3\\"'))
    after = fingerprint(load_data(path))["train"]
    assert after["rows"] == before["train"]["rows"]
    assert after["crc32"] != before["train"]["crc32"]
    path.write_text(path.read_text() + "\n")
    with pytest.raises(UserError, match="was changed while a run reads it"):
        task.train[1]


def test_uids_of_many_rows_are_as_a_tuple_of_them(few, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    whole, carved = load_data(path).train, load_data(path, validation=30).train
    for rows in (whole, carved):
        found, expected = pool_of(rows), tuple(prompt.uid for prompt in rows)
        assert not isinstance(found, tuple) or len(rows) <= 10
        assert (tuple(found), tuple(found[2:5]), found[-1]) == (
            expected, expected[2:5], expected[-1]
        )  # fmt: skip
        assert [uid in found for uid in (*range(42), -1)] == [
            uid in expected for uid in (*range(42), -1)
        ]
    assert isinstance(pool_of(carved), tuple)  # ten are few
    few_of_many = whole[:1:3]
    assert [few_of_many.place(uid) for uid in (0, 1, 3)] == [0, None, None]
    assert [whole[::3].place(uid) for uid in (0, 1, 39, 40, -3)] == [0, None, 13, None, None]


def test_a_saved_data_set_that_reaches_beyond_its_end_is_refused(tmp_path):
    """One damaged number in it, and reading a row would end the process."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list([{"prompt": "1+2="}] * 5).save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    ends = struct.pack("<6i", *range(0, 21, 4))  # of the texts
    data = file.read_bytes()
    assert data.count(ends) == 1
    file.write_bytes(data.replace(ends, struct.pack("<6i", 0, 4, 8, 12, 2**30, 2**30 + 4)))
    with pytest.raises(UserError, match="saved cannot be read as a saved data set: "):
        load_data(tmp_path / "saved", validation=1)


def test_folders_and_names_that_datasets_reads(few, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    saved = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:4])}
    )
    saved.save_to_disk(tmp_path / "saved")
    here = tmp_path / "plain"
    here.mkdir()
    write_jsonl(here / "train.jsonl", ROWS)
    write_jsonl(here / "test.jsonl", ROWS[:4])
    for train, test in (
        (tmp_path / "saved/train", tmp_path / "saved/test"),
        (f"hf:{here}", f"hf:{here}:test"),
        (f"hf:{here}:default:train", f"hf:{here}:default:test"),
    ):
        task = load_data(train, validation=test)
        assert [{"prompt": p.prompt, **p.columns} for p in task.train] == ROWS
        assert isinstance(task.train, PromptRows)
        assert len(task.validation) == 4
    assert len(load_data(f"hf:{here}:train[:25%]").train) == 10
    for wrong, why in (
        (f"hf:{here}:dev", 'Unknown split "dev". Should be one of'),
        ("hf:nobody/nothing-of-this-name", "cannot be read: .*without a network there is only"),
        ("hf:a:b:c:d", "write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"),
    ):
        with pytest.raises(UserError, match=why) as error:
            load_data(wrong)
        assert "\n" not in str(error.value)


def test_a_saved_data_set_has_plain_values_whatever_its_format(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    rows = [{"prompt": "3+5=", "answer": 8}, {"prompt": "2+9=", "answer": 11}]
    datasets.Dataset.from_list(rows).with_format("torch").save_to_disk(tmp_path / "saved")
    (first, second) = load_data(tmp_path / "saved").train
    assert [str(each.columns["answer"]) for each in (first, second)] == ["8", "11"]


@pytest.mark.parametrize(
    "files",
    [
        {"dataset_dict.json": "{"}, {"dataset_dict.json": '{"splits": ["train"]}'},
        {"dataset_info.json": "{"}, {"dataset_info.json": "3", "state.json": "[]"},
    ],
)  # fmt: skip
def test_a_damaged_saved_data_set_is_refused_in_one_line(files, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"cannot be read as a saved data set: .") as refused:
        load_data(tmp_path)
    assert "\n" not in str(refused.value)
