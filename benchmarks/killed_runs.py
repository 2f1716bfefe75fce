"""Runs that are killed or interrupted at random moments, resumed, and compared with whole ones.

    python benchmarks/killed_runs.py --out killed [--count 200] [--seed 0]
        [--kinds single,staleness,processes,asynchronous,ray]

Each trial starts a run of five steps of a small model, sends SIGKILL, SIGTERM or SIGINT at a random
moment of its life, and resumes it until it is complete; every other resumed run gets a second
signal. A trial fails if a process does not end, leaves a traceback, ends with another exit code
than the signal's, does not print the command that resumes a started run, or if the metrics (except
times) or the last weights differ in any bit from those of an undisturbed run. The answers of
`asynchronous` (training.max_staleness=1) depend on time; there every step must occur once, in
order, with no answer older than allowed.

`processes` are two that start and end as under torchrun: when one dies, the other gets SIGTERM.
Commands are forked from a process that has imported torch (tests/commands.py), so one trial takes
seconds. OUT/trials.csv gets one line per signal. It exits with 1 if a trial failed.
"""

import argparse
import csv
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "training")]

from command_line import some_of  # noqa: E402
from commands import launch  # noqa: E402
from models import Lab, without_times  # noqa: E402
from ranks_jobs import surroundings  # noqa: E402

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OWN: dict[str, list[str]] = {
    "single": ["entrocraft"],
    "staleness": ["vcpo", "engine.staleness=1"],
    "processes": ["gae", "training.process_timeout_seconds=60"],
    "asynchronous": ["grpo", "training.max_staleness=1"],
    "ray": ["grpo", "--ray", "local", "ray.num_engines=1", "ray.num_trainers=1"],
}
STEPS = 5
LIMIT = 300.0  # seconds that a command may take


class Ended(NamedTuple):
    """How the processes of one command ended. text: what they printed."""

    codes: list[int]
    text: str
    seconds: float
    struck: bool  # whether the signal came before all had ended


class Broken(Exception):
    """A trial failed; the text says how."""


def command(kind: str, words: Sequence[Any], output: Path, blow: tuple[float, int, int] | None
            ) -> Ended:  # fmt: skip
    """Run one command to its end. blow: when to send which signal to which process."""
    count, started, struck = 2 if kind == "processes" else 1, time.monotonic(), False
    output.unlink(missing_ok=True)
    with surroundings(count) if count > 1 else nullcontext([{}]) as places:
        processes = [launch(words, output, environment=each) for each in places]
        if blow is not None:
            when, number, which = blow
            processes[0].join(when)
            if struck := all(process.is_alive() for process in processes):
                hit = processes if number != signal.SIGKILL else [processes[which % count]]
                for process in hit:
                    os.kill(process.pid, number)
                if number == signal.SIGKILL:
                    hit[0].join()
                    time.sleep(0.1)  # torchrun's polling interval
                    for process in processes:
                        if process.is_alive():
                            os.kill(process.pid, signal.SIGTERM)
        for process in processes:
            process.join(LIMIT)
            if process.exitcode is None:
                process.kill()
                raise Broken(f"did not end within {LIMIT:g} s")
    text = output.read_text(errors="replace") if output.exists() else ""
    codes = [process.exitcode for process in processes]
    return Ended(codes, text, time.monotonic() - started, struck)


def check_end(ended: Ended, number: int, folder: Path) -> None:
    """Raise Broken if commands that got a signal did not end as they should."""
    if "Traceback" in ended.text:
        raise Broken("a traceback: " + ended.text[-800:])
    started = (folder / "config.toml").exists()
    allowed = {0, 130, 1} if len(ended.codes) > 1 else {0, 130}
    allowed |= {-number} if number == signal.SIGKILL or not started else set()
    if len(ended.codes) > 1 and number == signal.SIGKILL:
        allowed.add(-signal.SIGTERM)  # a process that had no handler yet
    if not {*ended.codes} <= allowed:
        raise Broken(f"exit codes {ended.codes}: {ended.text[-500:]}")
    survived = number != signal.SIGKILL or (len(ended.codes) > 1 and "step 1/" in ended.text)
    if survived and any(ended.codes) and started and "strop train --resume" not in ended.text:
        raise Broken(f"no command that resumes: {ended.text[-500:]}")


def weights_of(folder: Path) -> bytes:
    """The contents of the last weights' file."""
    return (folder / f"checkpoints/step-{STEPS:06d}/model.safetensors").read_bytes()


def check_same(kind: str, folder: Path, whole: Path) -> None:
    """Raise Broken unless a disturbed run equals the undisturbed one."""
    lines = without_times(folder)
    if [line["step"] for line in lines] != list(range(1, STEPS + 1)):
        raise Broken(f"its steps are {[line['step'] for line in lines]}")
    if kind == "asynchronous":
        oldest = max(line["sampling/oldest_age_steps"] for line in lines)
        if oldest > 1:
            raise Broken(f"an answer is {oldest} steps old")
        return
    for mine, wanted in zip(lines, without_times(whole), strict=True):
        if mine != wanted:
            other = sorted(name for name in wanted if mine.get(name) != wanted[name])
            raise Broken(f"step {wanted['step']} differs in {', '.join(other[:5])}")
    if weights_of(folder) != weights_of(whole):
        raise Broken("its last weights differ")


def trial(kind: str, begin: list[Any], folder: Path, whole: Path, seconds: float,
          rng: random.Random) -> list[tuple[str, float, int]]:  # fmt: skip
    """One run with one or two signals; returns signal, moment and steps done. Raises Broken."""
    struck, blows = [], 1 + (rng.random() < 0.5)
    while True:
        blow = None
        if blows:
            blow = rng.uniform(0.0, seconds), rng.choice(SIGNALS), rng.randrange(2)
        again = (folder / "config.toml").exists()
        words = ["train", "--resume", folder] if again else ["train", *begin, "--out", folder]
        ended = command(kind, words, folder.with_suffix(".txt"), blow)
        if blow is None or not ended.struck:
            if any(ended.codes):
                raise Broken(
                    f"exit codes {ended.codes} of an undisturbed command: {ended.text[-500:]}"
                )
            check_same(kind, folder, whole)
            return struck
        log = folder / "metrics.jsonl"
        done = log.read_text().count("\n") if log.exists() else 0
        struck.append((signal.Signals(blow[1]).name, round(blow[0], 3), done))
        check_end(ended, blow[1], folder)
        blows -= 1


def main() -> None:
    """Run the trials, and print their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="number of signals, over all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", type=some_of(OWN), default=",".join(OWN))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    lab = Lab.make(given.out / "lab")
    kinds, rng = given.kinds, random.Random(given.seed)
    command("single", ["--version"], given.out / "whole.txt", None)  # starts the server
    wholes: dict[str, tuple[list[Any], Path, float]] = {}
    for kind in kinds:
        begin = [*OWN[kind], *lab.arguments(f"training.steps={STEPS}")]
        whole = given.out / f"{kind}-whole"
        ended = command(kind, ["train", *begin, "--out", whole], given.out / "whole.txt", None)
        assert not any(ended.codes), ended.text
        wholes[kind] = begin, whole, ended.seconds
    counts: Counter[str] = Counter()
    failed, number = 0, 0
    with (given.out / "trials.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("trial", "kind", "signal", "after_s", "steps_done", "found"))
        while sum(counts.values()) < given.count:
            kind, number = kinds[number % len(kinds)], number + 1
            begin, whole, seconds = wholes[kind]
            folder, found = given.out / f"{kind}-{number}", "the same"
            struck: list[tuple[str, float, int]] = []
            try:
                struck = trial(kind, begin, folder, whole, seconds, rng)
            except Broken as error:
                failed, found, struck = failed + 1, str(error), [("?", 0.0, 0)]
                print(f"trial {number} ({kind}): {error}", flush=True)
            for each in struck:
                counts[f"{kind} {each[0]}"] += 1
                table.writerow((number, kind, *each, found))
            file.flush()
    for name, count in sorted(counts.items()):
        print(f"{name:24} {count}")
    print(f"{sum(counts.values())} signals in {number} runs, {failed} runs failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
