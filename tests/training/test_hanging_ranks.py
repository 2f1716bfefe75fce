"""One of several processes hangs: it is named, the others end, and the run can be resumed."""

import os
import re
import signal
import time
from typing import Any

import pytest
from commands import forked
from models import Lab
from ranks_jobs import do, ends, join_and_do, launch, surroundings, wait_for_steps
from short_runs import make_lab, settings_for

from strop.api.session import changed
from strop.training.parallel.ranks import Ranks
from strop.training.record import checkpoint


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("lab"))


def raw_of(lab: Lab, **training: Any) -> dict[str, Any]:
    raw = settings_for(lab, "grpo")
    raw["training"] = {**raw["training"], "lr": 1e-3, "save_every": 1, **training}
    return raw


def test_a_process_that_is_stopped_is_named_and_ends_all(lab, tmp_path):
    """With its checkpoint whole, from where the run goes on."""
    number = 1
    folder, output = tmp_path / "run", tmp_path / "said"
    raw = raw_of(lab, steps=5000, process_timeout_seconds=3)
    lines = folder / "metrics.jsonl"
    with surroundings(2) as places:
        jobs = [{"raw": raw, "folder": str(folder)}]
        processes = [forked(join_and_do, each, jobs, output) for each in places]
        wait_for_steps(lines, processes, output)
        os.kill(processes[number].pid, signal.SIGSTOP)
        started = time.monotonic()
        try:
            assert ends([processes[1 - number]]) == [1]
            assert time.monotonic() - started < 60  # of two hours
        finally:
            processes[number].kill()
            processes[number].join()
    (said,) = [line for line in output.read_text().splitlines() if line.startswith("stopped:")]
    assert re.search(
        rf"process {number} of 2 \({processes[number].pid} on \S+; last at "
        r"(the beginning|step \d+, \w+|the (checkpoint|validation) .*), \S+\.py, line \d+\) "
        rf"gave no sign of life for 3 s .* Resume with: strop train --resume {folder}",
        said,
    ), said
    done = checkpoint.step_of(checkpoint.newest(folder / "checkpoints"))
    assert done >= len(lines.read_text().splitlines()) - 1
    assert changed(folder, ["training.process_timeout_seconds=60"]).training.steps == 5000
    assert changed(folder, ["training.collector_timeout_seconds=60"]).training.steps == 5000
    do({"folder": str(folder), "steps": done + 1}, Ranks())


@pytest.mark.parametrize(
    ("how", "number", "place", "checkpoint"),
    [
        ("stands", 1, r"step 1, \w+", "whole"),
        ("disk", 0, "the checkpoint of step 1", "whole"),
        ("disk", 1, "the checkpoint of step 1", "sharded"),
    ],
)
def test_a_process_that_stands_still_is_named_and_not_the_one_that_waits_for_it(
    lab, tmp_path, how, number, place, checkpoint
):
    raw = raw_of(lab, steps=2, process_timeout_seconds=2, checkpoint=checkpoint)
    codes, text = launch(2, [{"raw": raw, "folder": str(tmp_path / "run"), how: number}], tmp_path)
    assert codes == [1, 1]
    (said,) = [line for line in text.splitlines() if line.startswith("stopped:")]
    name = rf"process {number} of 2 \(.* at {place}, ranks_jobs.py, line \d+\)"
    assert re.search(f"{name} did nothing for 2 s", said), said
