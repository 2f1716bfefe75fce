"""Recorded rollouts: which steps and which examples are shown, and how."""

import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.diagnosis import run as diagnosis
from strop.report.browser import MAX_BYTES, MAX_TEXT, rollout_browser
from strop.report.recorded import MAX_ROWS, MOST_STEPS, Recorded, Recordings, pick_examples
from strop.report.run_folder import Run
from strop.support.errors import UserError
from strop.tracking.rollouts_file import read_table


def recorded(step: int, rows: list[dict]) -> Recorded:
    return Recorded(step, tuple(pick_examples(rows)), np.empty(0), np.empty(0))


def run_of(*steps: Recorded, name: str = "a") -> Run:
    return Run(name, {}, 0, None, steps, ())


def write(folder: Path, step: int, rows: list[dict]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{step:06d}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_examples_are_best_worst_and_typical_without_repeats() -> None:
    rewards = [0.0, 1.0, 0.5, 0.4, 0.0, 1.0, 0.5, None, float("nan")]
    rows = [{"step": i, "reward": r, "completion": "x"} for i, r in enumerate(rewards)]
    picked = [(kind, row["step"]) for kind, row in pick_examples(rows)]
    assert picked == [
        ("best", 5),
        ("best", 1),
        ("worst", 4),
        ("worst", 0),
        ("typical", 6),
        ("typical", 2),
    ]
    assert [kind for kind, _ in pick_examples(rows[:3])] == ["best", "best", "worst"]
    assert pick_examples(rows[7:]) == []


def test_typical_examples_have_the_median_reward_and_then_the_median_length() -> None:
    # beside the best and the worst two, three of reward 0.5 are left: the median length is 5
    rewards, lengths = (0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0), (1, 5, 8, 4, 1, 9, 9)
    rows = [
        {"reward": reward, "completion": length * "x"}
        for reward, length in zip(rewards, lengths, strict=True)
    ]
    picked = [len(row["completion"]) for kind, row in pick_examples(rows) if kind == "typical"]
    assert picked == [4, 8]


def test_examples_are_of_different_prompts_while_there_are_any() -> None:
    rows = [{"reward": 1.0, "prompt": prompt, "id": i} for i, prompt in enumerate("aaabbc")]
    picked = [row["prompt"] for _, row in pick_examples(rows)]
    assert picked[:3] == ["c", "b", "a"]  # the newest of each
    assert len(picked) == 6


def test_the_only_wrong_answer_is_shown_though_its_prompt_is_known() -> None:
    rows = [{"reward": 1.0, "prompt": prompt, "id": i} for i, prompt in enumerate("aabbcc")]
    rows[4]["reward"] = 0.0
    picked = pick_examples(rows)
    assert [row["prompt"] for kind, row in picked if kind == "best"] == ["c", "b"]
    assert next(row["id"] for kind, row in picked if kind == "worst") == 4


def test_texts_are_shown_as_text_and_long_ones_cut() -> None:
    row = {
        "reward": 1.0,
        "prompt": [{"role": "user", "content": "1 < 2?"}],
        "completion": "<script>alert('x')</script>" + "y" * MAX_TEXT,
        "ids": [1, 2, 3],
        "source & kind": "<b>",
        "long": "z" * 100,
    }
    html = rollout_browser([run_of(recorded(5, [row]))])
    assert "user: 1 &lt; 2?" in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "… 27 more characters" in html
    assert "source &amp; kind <b>&lt;b&gt;</b>" in html
    assert "ids" not in html
    assert "zzz" not in html
    assert rollout_browser([run_of()]) == ""


@pytest.mark.parametrize("count", [1, 2, MOST_STEPS, 13, 100])
def test_the_first_the_last_and_evenly_spread_steps_are_kept(tmp_path: Path, count: int) -> None:
    for step in range(10, 10 * count + 10, 10):
        write(tmp_path, step, [{"reward": step / 2, "length": 3, "prompt": "p"}])
    (tmp_path / "step-000010.tokens.parquet").write_bytes(b"of another kind")
    notes: list[str] = []
    found = Recordings(tmp_path).read(notes)
    steps = [each.step for each in found]
    assert len(steps) == len(set(steps)) == min(count, MOST_STEPS)
    assert (steps[0], steps[-1]) == (10, 10 * count)
    gaps = np.diff(steps)
    assert not len(gaps) or gaps.max() - gaps.min() <= 10
    assert [each.rewards.tolist() for each in found] == [[step / 2] for step in steps]
    assert notes == []


def test_all_numbers_but_only_the_last_rows_of_a_step_are_read(tmp_path: Path) -> None:
    rows = [{"reward": float(i), "length": i, "prompt": "p"} for i in range(MAX_ROWS + 50)]
    rows[7] |= {"reward": None, "length": None}
    write(tmp_path, 3, rows)
    (found,) = Recordings(tmp_path).read([])
    assert len(found.rewards) == len(found.lengths) == MAX_ROWS + 49
    assert [row["length"] for kind, row in found.examples if kind == "worst"] == [50, 51]


def test_a_file_is_read_again_only_when_it_is_another(tmp_path: Path) -> None:
    first, second = (write(tmp_path, step, [{"reward": 1.0}]) for step in (1, 2))
    recordings = Recordings(tmp_path)
    before = recordings.read([])
    write(tmp_path, 2, [{"reward": 0.0}, {"reward": 1.0}])
    os.utime(second, ns=(1, 1))
    after = recordings.read([])
    assert after[0] is before[0]
    assert after[1].rewards.tolist() == [0.0, 1.0]
    first.write_bytes(b"PAR1 half")
    notes: list[str] = []
    assert [each.step for each in recordings.read(notes)] == [2]
    assert len(notes) == 1
    assert notes[0].startswith("rollouts/step-000001.parquet was left out: ")


def test_text_that_is_none_is_named_by_all_who_read_it(tmp_path: Path) -> None:
    """One byte of a file is another; its numbers are those of before."""
    numbers = {"step": 1, "uid": 1, "draw": 0, "reward": 1.0, "advantage": 1.0, "scored": True}
    path = write(tmp_path / "rollouts", 1, [{**numbers, "prompt": "a prompt of it"}])
    assert b"a prompt of it" in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"a prompt of it", b"a prompt of \xfft"))
    notes: list[str] = []
    assert Recordings(path.parent).read(notes) == []
    assert notes[0].startswith("rollouts/step-000001.parquet was left out: ")
    (tmp_path / "config.toml").touch()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    for read, given in ((diagnosis.read, tmp_path), (read_table, path)):
        with pytest.raises(UserError, match=r"000001\.parquet is damaged \(its bytes are"):
            read(given)


def test_the_last_step_is_open_and_each_has_a_button() -> None:
    steps = [recorded(step, [{"reward": 1.0, "completion": f"of {step}"}]) for step in (5, 1200)]
    html = rollout_browser([run_of(*steps)])
    assert re.findall(r'aria-pressed="(\w+)">([\d,]+)<', html) == [
        ("false", "5"),
        ("true", "1,200"),
    ]
    blocks = re.findall(r'<div class="of-step"( hidden)?>(.*?)</article>', html)
    assert [bool(hidden) for hidden, _ in blocks] == [True, False]
    assert "<select" not in html
    several = rollout_browser([run_of(*steps, name="a<"), run_of(), run_of(*steps, name="b")])
    assert re.findall(r"<option[^>]*>(.*?)</option>", several) == ["a&lt;", "b"]
    assert re.findall(r'<div class="of-run"( hidden)?>', several) == ["", " hidden"]


def test_texts_together_stay_within_what_a_page_may_hold() -> None:
    row = {"reward": 1.0, "prompt": "äß<" * 10_000, "completion": "y" * 30_000}
    steps = [recorded(step, [row, dict(row), dict(row)]) for step in range(12)]
    html = rollout_browser([run_of(*steps)])
    assert 0.6 * MAX_BYTES < len(html.encode()) < 1.2 * MAX_BYTES
    short = rollout_browser([run_of(recorded(1, [{"reward": 1.0, "completion": "y" * 400}]))])
    assert "more characters" not in short
