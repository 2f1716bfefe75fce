"""The display of the runs' progress."""

import io
import json
import time
from pathlib import Path

from rich.console import Console

from strop.comparison.carry_out import RunsProgress
from strop.comparison.plan import Entry
from strop.comparison.runs import Job, last_step, latest

LONG = "'my_recipes_of_mine.py:a_very_long_name_of_a_method'(clip_high=0.3) training.lr=1e-3"


def jobs(folder: Path) -> list[Job]:
    """One done, one at step 5 of 10 that went on from step 1 60 s ago, one that waits."""
    made = [Job(Entry(LONG, ""), 0, folder, "done"), Job(Entry("grpo", ""), 1, folder, "training"),
            Job(Entry("rloo", ""), 2, folder)]  # fmt: skip
    for job, steps in zip(made[:2], (10, 5), strict=True):
        job.folder.mkdir(parents=True)
        lines = [{"step": s, "reward": s / 8, "entropy": 0.25} for s in range(1, steps + 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (job.folder / "metrics.jsonl").write_text(text + '{"step": 9')
    made[1].started, made[1].started_at = time.monotonic() - 60, 1
    return made


def test_the_last_whole_line_counts(tmp_path: Path) -> None:
    done, training, waiting = jobs(tmp_path)
    assert [last_step(job.folder) for job in (done, training, waiting)] == [10, 5, 0]
    assert latest(training.folder) == {"step": 5, "reward": 0.625, "entropy": 0.25}
    assert latest(waiting.folder) == {}


def test_on_a_terminal_there_is_a_line_a_run_and_nothing_overlaps(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24)
    shown = RunsProgress(console, jobs(tmp_path), 10)
    console.print(shown._table())
    title, head, done, training = screen.getvalue().splitlines()
    # 4 steps in 60 s; 5 and 10 are left: 225 s
    assert title.strip() == "1 of 3 runs done, about 4 min left"
    assert head.split() == ["run", "state", "step", "reward", "entropy"]
    assert done.startswith("'my_recipes_of_mine.py:a_very_long")
    assert "…" in done
    assert done.rstrip().endswith("done")
    assert training.split() == ["grpo", "seed", "1", "training", "5/10", "0.625", "0.250"]
    assert max(map(len, screen.getvalue().splitlines())) <= 80


def test_elsewhere_a_change_of_state_is_a_line(tmp_path: Path) -> None:
    screen = io.StringIO()
    made = jobs(tmp_path)
    shown = RunsProgress(Console(file=screen, width=80, soft_wrap=True), made, 10)
    with shown:
        shown.update()
        shown.update()
        made[2].state = "training"
        shown.update()
    assert screen.getvalue().splitlines() == [
        f"{LONG} seed 0: done", "grpo seed 1: training", "rloo seed 2: training",
    ]  # fmt: skip
