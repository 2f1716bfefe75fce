"""Every strategy of rollouts, draw and replay in a short real run: its cost and its effect.

    OMP_NUM_THREADS=1 python benchmarks/strategies_run.py --out FOLDER [--recipes latr,dots_rr]
        [--steps 20] [--seed 0] [--page docs/evidence/strategies.md]

Trains the recipes one after the other in this process, each for 20 steps of 8 prompts with 8
answers on `tiny-worked`, whose answers show their work; strategies that need an environment get one
that the model `tiny` plays. `RUNS` has the other differences: numbers that fit steps of this size.
The numbers go into OUT/strategies.csv, one line per recipe as it ends; recipes that have a line are
not repeated. With --page they become the page's table.

    first, last   success in training: mean reward of all fresh answers, first and last 5 steps
    sampled       tokens that the engine samples per step, for any purpose, also those in no answer
    trained       tokens of answers with a gradient per step, each counted once
    seconds       processor seconds of this process per step, without the reward functions' process
    own           the strategy's own metrics, means over the steps that have them
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import floor
from floor_settings import Setting

from strop.engines.base import Event
from strop.support.tables import read_rows

HEAD = ("recipe", "task", "options", "first", "last", "sampled", "trained", "seconds", "own")
PROMPTS, ANSWERS, EDGE = 8, 8, 5
WORKED = "worked_countdown"


@dataclass(frozen=True)
class Short:
    """own: metrics of the strategy; call: the recipe's parameters; options: of the method, None to
    take the recipe's own in place of the common one; data: options of the section.
    """

    own: tuple[str, ...]
    call: str = ""
    task: str = WORKED
    options: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def words(self, recipe: str) -> str:
        """The recipe with its parameters."""
        return f"{recipe}({self.call})" if self.call else recipe

    def raw(self, recipe: str, steps: int, seed: int) -> dict[str, Any]:
        """Plain settings of the run."""
        sizes = {"sampling.num_prompts": PROMPTS, "sampling.num_rollouts": ANSWERS}
        raw = Setting(recipe, options={**sizes, **self.options}).raw(steps, seed)
        given = {name: value for name, value in raw["algorithm"].items() if value is not None}
        model = "tiny-worked" if self.task == WORKED else "tiny"
        raw |= {"recipe": self.words(recipe), "algorithm": given, "model": {"name": model}}
        raw |= {"data": {"task": self.task, **self.data}, "evaluation": {"every": 0}}
        return raw

    def shown(self) -> str:
        """What differs from the common setting."""
        beside = {f"data.{name}": value for name, value in self.data.items()}
        words = [f"{k}={v}" for k, v in {**self.options, **beside}.items() if v is not None]
        return " ".join([self.call, *words] if self.call else words)


PLAYED = "kernel_timing"  # where one episode in fifteen succeeds from the start
AGAIN = {"train_size": 16}  # prompts recur, so that what is known of them has an effect
RUNS = {
    "grpo": Short(("groups/frac_mixed",)),
    "latr": Short(("lookahead/forks", "lookahead/pruned")),
    "arrol": Short(("pruning/examined", "pruning/stopped"), "L_detect=16"),
    "ettrl_etmr": Short(("rollout/tokens_shared",), options={"sampling.num_rollouts": 2}),
    "arpo": Short(("rollout/begun", "rollout/tokens_shared"), "N=4", PLAYED),
    "aepo_agentic_rollout": Short(
        ("rollout/begun", "rollout/tokens_shared"), "initial_rollouts=4", PLAYED
    ),
    "cure": Short(("phase", "rollout/tokens_shared"), "min_letters=1"),
    "scope_recycle": Short(("splice/failed", "splice/tried", "splice/repaired")),
    "r3l": Short(("retry/valid", "retry/base", "retry/again"), "", PLAYED),
    "cleaner_saar": Short(("repair/failed", "repair/kept"), "marker=''", "calculator"),
    "score_two_attempt": Short(("attempts/first", "attempts/second", "attempts/frac_repaired")),
    "xrpo": Short(
        ("budget/most", "seeded/groups", "seeded/solved"), "extra=2",
        options={"sampling.num_rollouts": 4},
    ),
    "dars": Short(
        ("budget/mean", "budget/more"), "n_max=12", options={"sampling.num_rollouts": 4}
    ),
    "april_partial_rollout": Short(
        ("partial/groups_left", "partial/tokens_left"), "chunk=12, num_prompts=8"
    ),
    "sol_rl_explore_then_train": Short(
        ("exploring/spread", "exploring/repeated"), "N=16, K=8",
        options={"sampling.num_rollouts": None},
    ),
    "sage_skill_chain": Short(
        ("skills/frac_used", "skills/frac_reused"),
        r"scenario='numbers', skill='(?P<name>\\d+[-+*/]\\d+)', call='{name}'",
    ),
    "cory": Short(("team/first", "team/second"), "kl=0.05"),
    "dots_rr": Short(("draw/success", "reference/error", "replay/share")),
    "vade": Short(("draw/success", "draw/information", "tracked/success"), data=AGAIN),
    "gain_rl": Short(("draw/rank", "draw/centre")),
    "prompt_gdro": Short(("bins/frac_0", "bins/score_0", "bins/score_1"), data=AGAIN),
    "rollout_gdro": Short(("bins/frac_0", "bins/rollouts_0", "bins/rollouts_1"),
                          options={"sampling.num_rollouts": 4}, data=AGAIN),
    "brorl": Short(("groups/frac_mixed", "rate/lr_scale"), "base_rollouts=64",
                   options={"sampling.num_prompts": 2, "sampling.num_rollouts": 32}),
    "drive": Short(
        ("phase", "draw/pool", "draw/success"), "num_prompts=8, num_rollouts=8, later=16",
        options={"sampling.num_prompts": None, "sampling.num_rollouts": None},
        data={"train_size": 200},
    ),
    "craft_gui": Short(("draw/stage", "draw/difficulty"), "column='num_numbers', stages=2"),
    "v_zero": Short(("budget/least", "budget/most"), "most=16"),
    "spear": Short(("replay/stored", "replay/drawn"), "size=16, hist=16"),
    "digirl": Short(("replay/stored", "chosen/turns"), "actor_epochs=3", PLAYED,
                    options={"sampling.num_prompts": 64, "sampling.num_rollouts": 1}),
    "dart": Short(("data/dropped/not_ready", "replay/stored", "replay/drawn"), "", PLAYED,
                  data=AGAIN),
}  # fmt: skip


class Course(floor.Course):
    """Records a run's metrics, with the sampled tokens and the processor time of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn, self.worked = 0, 0.0

    def begin(self, run: Any, before: list[dict[str, float]]) -> None:
        """Start counting the tokens that the engine samples."""
        engine = run.world.engine

        def counted(told: Callable[..., list[Event]]) -> Callable[..., list[Event]]:
            def call(*given: Any) -> list[Event]:
                events = told(*given)
                self.drawn += sum(len(event.ids) for event in events)
                return events

            return call

        engine.poll, engine.cancel = counted(engine.poll), counted(engine.cancel)
        self.worked = time.process_time()

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        now = time.process_time()
        super().step(run, {**metrics, "drawn": self.drawn, "worked": now - self.worked})
        self.drawn, self.worked = 0, time.process_time()


def row_of(recipe: str, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Train a recipe; returns its line of the table."""
    short = RUNS[recipe]
    lines = floor.trained(short.raw(recipe, steps, seed), folder, Course())
    right = [mean(reward(line)) for line in lines]
    own = {n: [line[n] for line in lines if n in line] for n in short.own}
    return {
        "recipe": recipe, "task": short.task, "options": short.shown(),
        "first": f"{mean(right[:EDGE]):.3f}", "last": f"{mean(right[-EDGE:]):.3f}",
        "sampled": f"{mean(line['drawn'] for line in lines):.0f}",
        "trained": f"{mean(map(trained_on, lines)):.0f}",
        "seconds": f"{mean(line['worked'] for line in lines):.2f}",
        "own": "; ".join(f"{name} {mean(values):.3g}" for name, values in own.items() if values),
    }  # fmt: skip


def reward(line: dict[str, float]) -> list[float]:
    """The means of the reward functions."""
    return [v for k, v in line.items() if k.startswith("rewards/") and k.endswith("/mean")]


def trained_on(line: dict[str, float]) -> float:
    """Tokens of the answers with a gradient."""
    kept = line["completions/mean_length"] * line["data/rollouts_kept"]
    return kept * line.get("groups/frac_rollouts_with_gradient", 1.0)


def main() -> None:
    """Train the recipes that have no line yet."""
    options = floor.asked(__doc__, steps=20)
    if unknown := {*(options.recipes or "grpo").split(",")} - RUNS.keys():
        raise SystemExit(f"--recipes {', '.join(sorted(unknown))}: there are {', '.join(RUNS)}")
    path = options.out / "strategies.csv"
    for name in floor.chosen(options.recipes, path, RUNS, HEAD):
        if name in {row["recipe"] for row in read_rows(path)}:
            continue
        with tempfile.TemporaryDirectory(dir=options.out) as folder:
            row = row_of(name, Path(folder) / "run", options.steps, options.seed)
        floor.add(path, row, HEAD)
    if options.page:
        floor.write_page(options.page, read_rows(path), HEAD)


if __name__ == "__main__":
    main()
