"""Environments and agents that fail in every way, and the expected outcome of their episodes.

    python benchmarks/environment_faults.py --out FOLDER [--steps 10000] [--seed 0]

Trains `grpo` on the shipped model `tiny` in four ways: with an environment that is played in this
process, in two workers, and awaited, and with an agent. A fault and its turn are drawn from the
episode's seed, so the program knows how many turns each episode has, its exit, whether it is scored
and its reward. It reports a difference if an episode has a wrong row, none or two, if a process, a
thread or a port is left over, or if a run stops. In the fifth way all episodes fail, and the run
has to stop. --steps: the least number of environment steps and agent calls in all. It exits with 1
if anything differs.
"""

import argparse
import asyncio
import http.client
import json
import math
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import strop
from strop.environments import Environment, Observation

ROLLOUTS, PROMPTS = 4, 16
TURNS = 2.6  # of an episode, at least, on average
SECONDS = 3.0  # data.env_timeout_seconds
UNSCORED = ("environment_crash", "unreachable", "declared")
ENDS = {
    "raises": "environment_crash", "exits": "environment_crash", "text": "environment_crash",
    "nan": "environment_crash", "huge": "environment_crash", "state": "environment_crash",
    "away": "unreachable", "cut": "turn_limit", "heals": "done",
}  # fmt: skip
AWAITED = {**ENDS, "hangs": "timeout", "cancels": "environment_crash"}
WORKERS = {**ENDS, "hangs": "timeout", "dies": "environment_crash"}
AGENT = {
    "raises": "exception", "exits": "exception", "dies": "crash", "hangs": "timeout",
    "junk": "unreadable", "away": "unreachable", "none": "declared", "bad": "done",
    "gone": "done", "two": "done",
}  # fmt: skip
RARE = ("hangs", "dies")  # since each takes seconds


def fate(seed: int, run: int, share: float, faults: list[str]) -> tuple[int, str, int]:
    """An episode's turns if nothing fails, its fault, and the turn of the fault."""
    draw = random.Random(f"{run}/{seed}")
    turns = draw.randint(2, 5)
    weights = [0.2 if each in RARE else 1.0 for each in faults]
    fault = draw.choices(faults, weights)[0] if draw.random() < share else ""
    return turns, fault, draw.randrange(1, turns)


def earned(turns: int) -> float:
    """The sum of the rewards of a number of turns."""
    return sum((turn + 1) / 16 for turn in range(turns))


class Faulty(Environment):
    """An environment that fails as its seed says."""

    max_turns, max_tokens = 6, 1

    def __init__(self, run: int, share: float, faults: list[str]) -> None:
        self.run, self.share, self.faults = run, share, faults

    def reset(self, seed: int) -> Observation:
        """Start an episode; nothing fails."""
        self.turns, self.fault, self.at = fate(seed, self.run, self.share, self.faults)
        self.turn, self.tries = 0, 0
        return Observation("0-9:")

    def step(self, action: str) -> Any:
        """Fail, or answer."""
        if self.fault == "hangs" and self.turn == self.at:
            time.sleep(600)
        return self.answer(action)

    def answer(self, action: str) -> Any:
        """The answer to an action, or the fault's result."""
        if self.fault and self.turn == self.at:
            self.tries += 1
            if self.fault != "heals" or self.tries == 1:
                return self.failed()
        self.turn += 1
        reward, done = self.turn / 16, self.turn == self.turns
        return Observation(":=", reward, done, valid=action.isdigit())

    def failed(self) -> Any:
        """The fault's exception or odd result."""
        if self.fault == "raises":
            raise ValueError("no such place")
        if self.fault == "exits":
            sys.exit(4)
        if self.fault in ("away", "heals"):
            raise ConnectionError("the server is away")
        if self.fault == "cancels":
            raise asyncio.CancelledError
        if self.fault == "dies":
            os._exit(3)
        return {"text": "a text", "nan": Observation(":", math.nan),
                "huge": Observation(":", 1e300),
                "state": Observation(":", state=3),  # type: ignore[arg-type]
                "cut": Observation(":", 0.0, truncated=True)}[self.fault]  # fmt: skip


class Awaited(Faulty):
    """The same environment with an async step."""

    async def step(self, action: str) -> Any:
        """Fail, or answer."""
        await asyncio.sleep(0)
        if self.fault == "hangs" and self.turn == self.at:
            await asyncio.sleep(600)
        return self.answer(action)


class Odd:
    """A class that the trainer's process does not have."""


def play(row: dict[str, Any]) -> Any:
    """An agent that fails as its row says."""
    turns, fault, at = fate(row["seed"], row["run"], row["share"], list(AGENT))
    for turn in range(turns):
        if turn == at and fault in ("bad", "gone", "two"):
            odd_calls(fault, row["prompt"])
        elif turn == at and fault:
            return end_of(fault)
        call(row["prompt"]).read()
    return earned(turns)


def end_of(fault: str) -> Any:
    """How an agent with a fault ends."""
    if fault == "raises":
        raise ValueError("no such way")
    if fault == "exits":
        sys.exit(4)
    if fault == "away":
        raise ConnectionError("the search server is away")
    if fault == "dies":
        os._exit(3)
    if fault == "hangs":
        time.sleep(600)
    return Odd() if fault == "junk" else None


def odd_calls(fault: str, prompt: str) -> None:
    """Calls that are refused, abandoned, or made two at once."""
    if fault == "bad":
        assert call(prompt, max_tokens=-1).status == 400
    if fault == "gone":
        sent(prompt, max_tokens=4).close()
    if fault == "two":
        both = [threading.Thread(target=lambda: call(prompt).read()) for _ in "ab"]
        for each in both:
            each.start()
        for each in both:
            each.join()


def call(prompt: str, **more: Any) -> http.client.HTTPResponse:
    """The response of the policy's server."""
    return sent(prompt, **more).getresponse()


def sent(prompt: str, **more: Any) -> http.client.HTTPConnection:
    """A connection over which a call was sent."""
    there = http.client.HTTPConnection(os.environ["STROP_BASE_URL"].removeprefix("http://"))
    body = json.dumps({"model": "policy", "prompt": prompt, "max_tokens": 2, **more})
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    there.request("POST", "/v1/completions", body, {"Content-Type": "application/json", **key})
    return there


def wanted(seed: int, run: int, share: float, ends: dict[str, str]) -> tuple[str, Any, float]:
    """An episode's exit, the numbers of turns that it may have, and its reward."""
    turns, fault, at = fate(seed, run, share, list(ends))
    exit = ends[fault] if fault else "done"
    if ends is AGENT:
        if exit != "done":
            return exit, (at,), 0.0
        more = {"two": (turns + 2,), "gone": (turns, turns + 1)}
        return exit, more.get(fault, (turns,)), earned(turns)
    return (exit, (turns,), earned(turns)) if exit == "done" else (exit, (at + 1,), earned(at))


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run's rollout tables."""
    import pyarrow.parquet as pq

    for path in sorted((folder / "rollouts").glob("*.parquet")):
        yield from pq.read_table(path).to_pylist()


def left() -> set[str]:
    """Threads, child processes and listening ports of this process."""
    mine = str(os.getpid())
    found = {f"thread {each.name}" for each in threading.enumerate()}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if text.rpartition(")")[2].split()[1] == mine:
            found.add(f"process {path.parent.name}")
    open = {os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in open:
            found.add(f"port {int(words[1].rpartition(':')[2], 16)}")
    return found


def differences(
    folder: Path, steps: int, run: int, ends: dict[str, str]
) -> tuple[list[dict[str, Any]], Counter[str], list[str]]:
    """The rows of a run, how often each exit was expected, and the differences."""
    rows, found = list(rows_of(folder)), list[str]()
    counts, exits = Counter(row["uid"] for row in rows), Counter[str]()
    if len(rows) != steps * PROMPTS * ROLLOUTS or set(counts.values()) != {ROLLOUTS}:
        found.append(f"{len(rows)} rows of {len(counts)} seeds, {set(counts.values())} of one")
    for row in rows:
        exit, turns, reward = wanted(int(row["uid"]), run, SHARE, ends)
        exits[exit] += 1
        right = row["exit"] == exit and row["scored"] == (exit not in UNSCORED)
        right &= len(json.loads(row["turns"])) in turns
        if row["scored"]:
            right &= abs(row["reward"] - reward) < 1e-6
        if not right:
            said = {k: row.get(k) for k in ("exit", "scored", "reward", "exit_why")}
            found.append(f"seed {row['uid']}: {exit}, {turns}, {reward} but {said}")
    return rows, exits, found


SHARE = 0.3  # of episodes with a fault


def trained(way: str, options: argparse.Namespace, steps: int) -> dict[str, Any]:
    """The options of a run."""
    given: dict[str, Any] = {
        "out": options.out / way, "progress": False, "threads": 1, "training_steps": steps,
        "evaluation_every": 0, "training_rollouts_every": 1, "training_inspect": 0,
        "sampling_num_prompts": PROMPTS, "sampling_num_rollouts": ROLLOUTS,
        "reward_max_unscored_share": 1.0, "data_env_retries": 1, "seed": options.seed,
    }  # fmt: skip
    if way not in ("one process", "all fail"):  # there nothing could end a step that hangs
        given["data_env_timeout_seconds"] = SECONDS
    here, size = Path(__file__).resolve(), steps * PROMPTS
    if way == "agent":
        data = options.out / "rows.jsonl"
        about = {"run": options.seed, "share": SHARE}
        rows = [{"prompt": f"1,2:{seed}=", "seed": seed, **about} for seed in range(size)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        more = {"task": f"agent:{here}:play", "data": str(data), "data_env_workers": 8,
                "rollout_max_tokens": 6}  # fmt: skip
        return {**given, **more}
    config = {"run": options.seed, "share": SHARE, "faults": list(WAYS[way])}
    if way == "all fail":
        config |= {"share": 1.0, "faults": ["raises"]}
    kind = "Awaited" if way == "awaited" else "Faulty"
    return {**given, "task": f"{here}:{kind}", "data_task_config": config, "data_train_size": size,
            "data_env_workers": 2 if way == "two workers" else 0}  # fmt: skip


WAYS: dict[str, dict[str, str]] = {
    "one process": ENDS, "two workers": WORKERS, "awaited": AWAITED, "agent": AGENT, "all fail": {},
}  # fmt: skip


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether a condition holds within so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def played(way: str, options: argparse.Namespace) -> tuple[int, list[str]]:
    """Play one way and print its line; returns its steps and the differences."""
    stops = way == "all fail"
    steps = 1 if stops else math.ceil(options.steps / (len(WAYS) - 1) / PROMPTS / ROLLOUTS / TURNS)
    before, began, stopped = left(), time.monotonic(), ""
    try:
        strop.train("grpo", **trained(way, options, steps)).close()
    except Exception as error:
        stopped = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    if stops:
        right = f"all {PROMPTS * ROLLOUTS} episodes failed" in stopped
        num, exits, found, rows = 0, Counter[str](), [] if right else [f"not so: {stopped}"], []
    else:
        rows, exits, found = differences(options.out / way, steps, options.seed, WAYS[way])
        num = sum(len(json.loads(row["turns"])) for row in rows)
        found += [f"it stopped: {stopped}"] if stopped else []
    if not within(10, lambda: left() <= before):
        found.append(f"left: {left() - before}")
    ends = Counter(row["exit"] for row in rows)
    told = ", ".join(f"{exit} {exits[exit]}/{ends[exit]}" for exit in sorted({*exits, *ends}))
    print(f"| {way} | {num:,} | {len(rows):,} | {told or 'the run stops'} | {len(found)} | "
          f"{seconds:.0f} |", flush=True)  # fmt: skip
    return num, found


def main() -> None:
    """Print a line for each way, and the differences."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--steps", type=int, default=10_000)
    ask.add_argument("--seed", type=int, default=0)
    options = ask.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| way | steps or calls | episodes | exits, expected/found | differences | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    found = [played(way, options) for way in WAYS]
    total, wrong = sum(num for num, _ in found), [each for _, own in found for each in own]
    print(f"\n{total:,} steps and calls in all", *wrong[:20], sep="\n", file=sys.stderr)
    sys.exit(1 if wrong or total < options.steps else 0)


if __name__ == "__main__":
    main()
