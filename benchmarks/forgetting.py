"""Does reinforcement forget less than supervised tuning? Two tasks of Countdown, in two orders.

    python benchmarks/forgetting.py FOLDER [--seeds 5] [--steps 40] [--arms grpo,sft] [--csv OUT]
    python benchmarks/forgetting.py FOLDER --csv OUT --complete     # of finished runs, no training
    python benchmarks/forgetting.py FOLDER --csv OUT --read         # tables of the CSV alone

Each arm trains the shipped model on one range of targets and then on another (`strop sequence`);
the targets between them form a suite that no arm trains on. All arms see the same puzzles by seed
and are scored on the same held-out ones. Runs are stored in FOLDER, and the program resumes where
it was stopped. Differences are paired by seed, over both orders.
"""

import argparse
import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_line import some_of

from strop.api.options import settings_of
from strop.cli.train import sections
from strop.cli.train_here import Job, work
from strop.comparison.sequence import carry_out, plan_of
from strop.comparison.sequence_page import write_result
from strop.environments.countdown import puzzles
from strop.evaluation.seeds import over_seeds, paired_difference
from strop.support.tables import read_rows, write_rows

TARGETS = {"small": (1, 10), "large": (45, 99), "between": (11, 44)}
ORDERS = (("small", "large"), ("large", "small"))
EPS, EVERY, REPLAY = 0.5, 10, 0.25
GRPO = ("grpo", "sampling.num_prompts=8", "sampling.num_rollouts=8", "rollout.max_tokens=12")
ANCHOR = f"control=step_back_to_anchor(every={EVERY}, eps={EPS})"
SLOW = f"training.lr=linear({5e-4 * EPS}, 0)"  # the anchor's control arm: the rate times eps
ARMS: dict[str, tuple[tuple[str, ...], float]] = {
    "grpo": (GRPO, 0.0),
    "sft": (("sft",), 0.0),
    "sft slow": (("sft", "training.lr=linear(1e-4, 0)"), 0.0),
    "grpo anchor": ((*GRPO, ANCHOR), 0.0),
    "grpo lr*eps": ((*GRPO, SLOW), 0.0),
    "grpo replay": (GRPO, REPLAY),
    "sft replay": (("sft",), REPLAY),
    "sft anchor": (("sft", ANCHOR), 0.0),
    "sft lr*eps": (("sft", SLOW), 0.0),
}
NUMBERS = ("learnt", "backward", "forgetting", "forward", "accumulation", "retention", "tokens",
           "seconds")  # fmt: skip
# (name, ours, theirs): the differences that the page reports
PAIRS = (
    ("sft - grpo", "sft", "grpo"),
    ("sft slow - grpo", "sft slow", "grpo"),
    ("anchor - lr*eps (grpo)", "grpo anchor", "grpo lr*eps"),
    ("anchor - plain (grpo)", "grpo anchor", "grpo"),
    ("replay - plain (grpo)", "grpo replay", "grpo"),
    ("replay - plain (sft)", "sft replay", "sft"),
    ("anchor - lr*eps (sft)", "sft anchor", "sft lr*eps"),
)
Row = Mapping[str, Any]


def data(folder: Path) -> None:
    """Writes the rows of every range: those to train on, and held-out ones for the scores."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (low, high) in TARGETS.items():
        for split, of in (("train", ["train"]), ("scored", ["held_out", "validation"])):
            rows = [row for each in of for row in puzzles(each) if low <= row["target"] <= high]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}-{split}.jsonl").write_text(text, encoding="utf-8")


def place_of(arm: str, order: Sequence[str], seed: int, root: Path) -> Path:
    """The folder of a sequence."""
    return root / "-".join(order) / f"{arm.replace(' ', '_').replace('*', 'x')}-{seed}"


def trained(arm: str, order: Sequence[str], seed: int, steps: int, root: Path) -> Row:
    """The numbers of a sequence, whose missing runs are trained."""
    words, replay = ARMS[arm]
    rows = root / "data"
    given = sections(
        "tiny", "", [f"{name}={rows}/{name}-train.jsonl" for name in order],
        [f"{name}={rows}/{name}-scored.jsonl" for name in TARGETS],
        ["strop.environments.countdown:correct"],
    )  # fmt: skip
    options = [
        f"seed={seed}", f"training.steps={steps}", "training.rollouts_every=0",
        "training.keep_checkpoints=1", "training.save_every=0", "evaluation.max_prompts=128",
        "evaluation.num_samples=2", "evaluation.k=[1]",
    ]  # fmt: skip
    plan = plan_of(settings_of([*words, *options], given, None), replay)
    place = place_of(arm, order, seed, root)

    def train(config: Path | None, run: Path) -> None:
        new, again = (run, None) if config is not None else (None, run)
        with contextlib.redirect_stdout(io.StringIO()):
            work(Job([], {}, config, new, again, 0, True, 0), None)

    plan.keep(place)
    found = carry_out(plan, place, train, lambda text: None)
    write_result(found, place)
    kept = found.kept
    numbers = {
        "learnt": kept.learnt, "backward": kept.backward, "forgetting": kept.forgetting,
        "forward": kept.forward, "accumulation": kept.accumulation[-1],
        "retention": kept.retention[-1], "tokens": sum(c.tokens for c in found.costs),
        "seconds": sum(c.seconds for c in found.costs),
    }  # fmt: skip
    cells = {
        f"{name} after {after}": row[at].value
        for after, row in zip(("start", *order), found.rows, strict=True)
        for at, name in enumerate(plan.sets)
    }
    about = {"arm": arm, "order": "-".join(order), "seed": seed, "steps": steps}
    return {**about, **{k: round(float(v), 5) for k, v in {**numbers, **cells}.items()}}


def tables(rows: Sequence[Row]) -> str:
    """Means over seeds of each arm, and paired differences; a seed's number is its mean over the
    orders, so only seeds with both orders count.
    """
    by = {(r["arm"], int(r["seed"]), r["order"]): r for r in rows}
    orders = sorted({r["order"] for r in rows})
    seeds = sorted({int(r["seed"]) for r in rows})

    def of(arm: str, name: str, only: Sequence[str]) -> dict[int, float]:
        whole = [s for s in seeds if all((arm, s, o) in by for o in only)]
        return {s: sum(float(by[arm, s, o][name]) for o in only) / len(only) for s in whole}

    shown = [name for name in NUMBERS if name != "seconds"]
    lines = [f"| arm | seeds | {' | '.join(shown)} |", "| --- " * (len(shown) + 2) + "|"]
    for arm in ARMS:
        found = {name: list(of(arm, name, orders).values()) for name in shown}
        if found["learnt"]:
            cells = [_interval(over_seeds(found[name]), name) for name in shown]
            lines.append(f"| {arm} | {len(found['learnt'])} | {' | '.join(cells)} |")
    names = ("learnt", "backward", "accumulation", "retention")
    for only in (orders, *([o] for o in orders)):
        lines += ["", f"Differences, {' and '.join(only)}:", ""]
        lines += [f"| difference | seeds | {' | '.join(names)} |", "| --- " * 6 + "|"]
        for what, ours, theirs in PAIRS:
            a, b = of(ours, "learnt", only), of(theirs, "learnt", only)
            both = sorted(a.keys() & b.keys())
            if both:
                pairs = [(of(ours, n, only), of(theirs, n, only)) for n in names]
                cells = [
                    _interval(paired_difference([x[s] for s in both], [y[s] for s in both]), "")
                    for x, y in pairs
                ]
                lines.append(f"| {what} | {len(both)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(estimate: Any, name: str) -> str:
    return f"{estimate.value:,.0f}" if name == "tokens" else f"{estimate:.3f}"


def main() -> None:
    """Train the missing runs, seed by seed, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--arms", type=some_of(ARMS), default=",".join(ARMS))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--complete", action="store_true")
    parser.add_argument("--read", action="store_true")
    given = parser.parse_args()
    rows: list[Row] = []
    if given.read and not (given.csv and given.csv.is_file()):
        parser.error(f"--read takes the rows of --csv, and {given.csv} is no file")
    if given.read:
        rows = read_rows(given.csv)
    else:
        data(given.folder / "data")
    for seed in range(0 if given.read else given.seeds):
        for arm in given.arms:
            for order in ORDERS:
                done = place_of(arm, order, seed, given.folder) / "result.json"
                if given.complete and not done.exists():
                    continue
                rows.append(trained(arm, order, seed, given.steps, given.folder))
                print({k: v for k, v in rows[-1].items() if " after " not in k}, flush=True)
        if given.csv:  # after every seed, so that it is complete when the program is stopped
            write_rows(given.csv, list(dict.fromkeys(name for row in rows for name in row)), rows)
    print(tables(rows))


if __name__ == "__main__":
    main()
