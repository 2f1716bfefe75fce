"""Where the processor time of a training step goes, for seven runs.

    OMP_NUM_THREADS=1 python benchmarks/step_profile.py [--cases tiny,critic]
                                        [--steps 5] [--operators update]
    OMP_NUM_THREADS=1 python benchmarks/step_profile.py --look 7

    tiny     `strop train`: the shipped model, 32 puzzles, 16 answers each
    worked   `--model tiny-worked`: answers of some 60 tokens
    large    a random Qwen3 of 40 million weights with a vocabulary of 16,384, 4 prompts of 8
             tokens, 4 answers of 512 tokens each, 3 steps
    turns    `gigpo data.task=corridor`: episodes of several turns
    critic   `gae`
    probes   `spo_chain`: values of states by further answers
    small    `strop train` with 8 answers of at most 8 tokens: the least that a step costs

It prints the median step of those between the first and the last, in seconds of this process's
processor time, by stage as in the metrics `timing_s/*`, with their shares; `else` is the time
outside all stages. The process of the reward functions is not included. `files` is the time for
writing a step's files besides its line of metrics.jsonl, by default every tenth step.

--operators STAGE: the torch operators that took most of that stage of the second step, by self
time under torch's profiler, which makes the step slower; the shares are useful, not the seconds.

--look PAIRS: the cost of finding which other methods would have taken the same step
(relatives.json), in the first step of `grpo`, `gspo` and `dapo` with both shipped models: the
median over PAIRS pairs of one-step runs, with the look and without, of the look itself, and its
share of ten such steps.
"""

import argparse
import functools
import operator
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from command_line import some_of
from doctor_memory import Shape, build
from torch.profiler import ProfilerActivity, profile

import strop.training.step
from strop.api.options import settings_of
from strop.training import loop, relatives
from strop.training.learner.step_metrics import Clock

LARGE = (
    "rollout.max_tokens=512", "sampling.num_prompts=4", "sampling.num_rollouts=4",
    "training.lr=1e-6", "training.steps=3",
)  # fmt: skip
CASES: dict[str, tuple[str, ...]] = {
    "tiny": ("grpo",),
    "worked": ("grpo", "model.name=tiny-worked"),
    "large": ("grpo", *LARGE),
    "turns": ("gigpo", "data.task=corridor"),
    "critic": ("gae",),
    "probes": ("spo_chain",),
    "small": ("grpo", "sampling.num_prompts=2", "sampling.num_rollouts=4", "rollout.max_tokens=8"),
}
SHAPE = Shape(vocabulary=16384)
STAGES = ("rollout", "reward", "refresh", "probes", "advantage", "update")


class StageClock(Clock):
    """Processor time, and torch's profiler over one stage of the second step."""

    def __init__(self, profiled: str, profiles: list[Any], **more: Any) -> None:
        super().__init__(time.process_time, **more)
        self.profiled, self.profiles = profiled, profiles

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        if stage != self.profiled:
            with super().__call__(stage):
                yield
            return
        second = len(self.profiles) == 1
        watched = profile(activities=[ProfilerActivity.CPU]) if second else nullcontext()
        with watched, super().__call__(stage):
            yield
        self.profiles.append(watched)


class Steps(loop.Watcher):
    """A watcher that shows nothing and records the metrics of a run's steps."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        self.seen.append(metrics)


def configured(case: str, steps: int, folder: Path) -> Any:
    """The configuration of a case's run."""
    words = [f"training.steps={steps}", "evaluation.every=0", "training.save_every=0", *CASES[case]]
    options = {}
    if case == "large":
        build(SHAPE, folder / "model")
        model = folder / "model"
        options = {
            "model": {"name": str(model)},
            "data": {"files": [str(model / "prompts.jsonl")]},
            "reward": {"functions": [f"{model}/rewards.py:even"]},
        }
    return settings_of(words, options, None)


def run_of(
    case: str, steps: int, stage: str, folder: Path
) -> tuple[list[dict[str, float]], list[Any]]:
    """Metrics of the steps, with the seconds of writing files, and the profiles of a stage."""
    settings = configured(case, steps, folder)
    profiles: list[Any] = []
    strop.training.step.Clock = functools.partial(StageClock, stage, profiles)  # type: ignore[assignment,misc]
    run, seen = loop.start(settings, folder / "run"), Steps()
    spent = [0.0]
    for name in ("write_rollouts", "write_tokens"):
        setattr(run.record, name, _added_up(getattr(run.record, name), spent))
    try:
        loop.go(run, seen, lambda *_: {})
    finally:
        run.close()
    seen.seen[-1]["files"] = spent[0]
    return seen.seen, profiles


def _added_up(call: Any, spent: list[float]) -> Any:
    def timed(*given: Any) -> Any:
        started = time.process_time()
        found = call(*given)
        spent[0] += time.process_time() - started
        return found

    return timed


def show(case: str, steps: list[dict[str, float]]) -> None:
    """Print a table of a case's stages."""
    last = steps[-1]
    plain = sorted(steps[1:-1] or steps[1:], key=operator.itemgetter("step_time"))
    middle = plain[len(plain) // 2]
    whole = middle["step_time"]
    found = {stage: middle.get(f"timing_s/{stage}", 0.0) for stage in STAGES}
    found["else"] = whole - sum(found.values())
    number, length = middle["num_rollouts"], middle["completions/mean_length"]
    print(f"\n{case}: {number:.0f} rollouts of {length:.0f} tokens; {whole:.3f} s a step")
    for stage, seconds in found.items():
        if seconds > 5e-4:
            print(f"  {stage:10} {seconds:8.3f} s  {seconds / whole:6.1%}")
    print(f"  files      {last['files']:8.3f} s, beside the step", flush=True)


def show_operators(stage: str, watched: Any, number: int = 15) -> None:
    """Print the operators that took most of a stage."""
    events = sorted(watched.key_averages(), key=lambda each: -each.self_cpu_time_total)
    whole = sum(each.self_cpu_time_total for each in events)
    print(f"  {stage}, torch's operators:")
    for each in events[:number]:
        share = each.self_cpu_time_total / whole
        print(f"    {each.key:50} {share:6.1%} {each.count:8} calls", flush=True)


def first_step(words: list[str], looking: bool) -> tuple[float, float]:
    """Processor seconds of a run's first step, and of its look at other methods."""
    kept = relatives.watching, relatives.look, loop._one_step
    whole, look = [0.0], [0.0]
    loop._one_step = _added_up(loop._one_step, whole)
    relatives.look = _added_up(relatives.look, look)
    if not looking:
        relatives.watching = lambda *_: None
    try:
        with tempfile.TemporaryDirectory() as place:
            run = loop.start(settings_of(words, {}, None), Path(place) / "run")
            try:
                loop.go(run, Steps(), lambda *_: {})
            finally:
                run.close()
    finally:
        relatives.watching, relatives.look, loop._one_step = kept
    return whole[0], look[0]


def show_look(pairs: int) -> None:
    """Print a table of the look's cost."""
    print("| method | model | step, s | more with the look, s | the look alone, s | of ten steps |")
    print("| --- | --- | --- | --- | --- | --- |")
    settings = ("training.steps=1", "training.lr=1e-4", "evaluation.every=0")
    first_step(["gspo", "model.name=tiny", *settings], looking=True)  # warms the process
    for model in ("tiny", "tiny-worked"):
        for method in ("grpo", "gspo", "dapo"):
            words = [method, f"model.name={model}", *settings]
            plain = [first_step(words, looking=False)[0]]
            more, alone = list[float](), list[float]()
            for _ in range(pairs):
                step, look = first_step(words, looking=True)
                more.append(step - plain[-1])
                alone.append(look)
                plain.append(first_step(words, looking=False)[0])
            step, look = statistics.median(plain), statistics.median(alone)
            print(f"| `{method}` | `{model}` | {step:.2f} | {statistics.median(more):+.3f} | "
                  f"{look:.3f} | {look / (10 * step + look):.1%} |", flush=True)  # fmt: skip


def main() -> None:
    """Print the tables of the cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=some_of(CASES), default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--operators", default="", choices=("", *STAGES))
    parser.add_argument("--look", type=int, default=0, metavar="PAIRS")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.look:
        show_look(options.look)
        return
    for case in options.cases:
        with tempfile.TemporaryDirectory() as place:
            steps, profiles = run_of(case, options.steps, options.operators, Path(place))
        show(case, steps)
        if profiles:
            show_operators(options.operators, profiles[1])


if __name__ == "__main__":
    main()
