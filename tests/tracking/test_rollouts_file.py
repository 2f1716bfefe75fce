"""Damaged files of rollouts: every reader names the file and the remedy."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_steps import rollout_rows, token_columns

import strop
from strop.api import tables
from strop.diagnosis import run as diagnosis
from strop.inspection.data import read_step
from strop.planning.recorded import _groups
from strop.report.recorded import Recordings
from strop.support.errors import UserError
from strop.tracking.rollouts_file import read_table, rollouts_files
from strop.tracking.watch import sampled

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "it was cut": lambda data: data[: len(data) // 2],
    "it is empty": lambda data: b"",
    "it is not a Parquet file": lambda data: b"half written",
    "its bytes are not those that were written": lambda data: (
        data[:4] + bytes(each ^ 0x5A for each in data[4:-200]) + data[-200:]
    ),
}
READERS: dict[str, Callable[[Path], object]] = {
    "run.rollouts": lambda folder: strop.Run(folder).rollouts,
    "inspect": read_step,
    "doctor": diagnosis.read,
    "plan": _groups,
    "trackers": lambda folder: sampled(folder, 3, 2),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with the rollouts and tokens of step 3, in a folder whose name has a =."""
    folder = tmp_path / "lr=1" / "run"
    made = {"tokens": token_columns(8, 12, 4, list("0123456789")), "rollouts": rollout_rows(8, 4)}
    for name, columns in made.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / name / "step-000003.parquet")
    (folder / "config.toml").write_text('recipe = "grpo"\n')
    (folder / "metrics.jsonl").write_text('{"step": 3}\n')
    return folder


def test_trackers_are_given_nothing_of_a_step_without_rollouts(run: Path) -> None:
    path = run / "rollouts" / "step-000003.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    assert sampled(run, 3, 2) is None


def test_files_come_in_the_order_of_their_steps(run: Path) -> None:
    names = [f"step-{step:06d}.parquet" for step in (3, 999_999, 1_000_000)]
    for name in names:
        (run / "rollouts" / name).touch()
    assert [path.name for path in rollouts_files(run)] == names


def test_the_doctor_holds_the_prompt_of_many_rollouts_once(run: Path) -> None:
    prompts = [row["prompt"] for row in diagnosis.read(run).rows]
    assert prompts == ["puzzle 0"] * 4 + ["puzzle 1"] * 4
    assert len(set(map(id, prompts))) == 2


@pytest.mark.parametrize("reader", READERS)
def test_readers_say_what_to_do(run: Path, reader: str) -> None:
    path = run / "rollouts" / "step-000003.parquet"
    whole = path.read_bytes()
    READERS[reader](run)
    for why, damage in DAMAGES.items():
        path.write_bytes(damage(whole))
        with pytest.raises(UserError) as refused:
            READERS[reader](run)
        assert str(refused.value) == (
            f"{path} is damaged ({why}): remove it to continue without it, or resume the run from "
            "a checkpoint before step 3 (--step), which writes it again"
        )


def test_a_report_says_it_on_its_page(run: Path) -> None:
    path = run / "rollouts" / "step-000003.parquet"
    path.write_bytes(path.read_bytes()[:100])
    notes: list[str] = []
    assert Recordings(path.parent).read(notes) == []
    assert notes[0].startswith("rollouts/step-000003.parquet was left out: ")
    assert "is damaged (it was cut): remove it" in notes[0]


def test_a_file_that_the_run_has_deleted_meanwhile_is_no_damage(run: Path) -> None:
    link = run / "rollouts" / "step-000002.parquet"
    link.symlink_to(run / "nowhere")
    notes: list[str] = []
    assert [found.step for found in Recordings(link.parent).read(notes)] == [3]
    assert notes == []
    with pytest.raises(UserError, match=r"cannot read .*000002\.parquet: No such file"):
        read_table(link)


def test_a_column_that_has_to_be_there(run: Path) -> None:
    path = run / "rollouts" / "step-000003.parquet"
    pq.write_table(pa.table({"step": [3]}), path)
    for reader in ("doctor", "plan"):
        with pytest.raises(UserError, match=r"is damaged \(it has no column uid\): remove it"):
            READERS[reader](run)


def test_the_name_of_a_folder_is_no_column(run: Path) -> None:
    assert "lr" not in read_table(run / "rollouts" / "step-000003.parquet").column_names


def test_what_a_reward_logs_may_change_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ([1, 2], [0.5, None], ["a", "b"]), ([True], [None], [1.5]), ([3], [2], [None])
    paths = [tmp_path / f"step-{step}.parquet" for step in range(3)]
    for path, (kind, number, text) in zip(paths, columns, strict=True):
        pq.write_table(pa.table({"kind": kind, "number": number, "text": text}), path)
    monkeypatch.setattr(tables, "shown", lambda table: table)  # pandas may be there or not
    assert tables.of_files(paths).to_pydict() == {
        "kind": ["1", "2", "true", "3"],
        "number": [0.5, None, None, 2],
        "text": ["a", "b", "1.5", None],
    }
