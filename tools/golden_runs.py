"""Compares what two versions of strop compute, bit for bit: six short runs and every padded call.

    python tools/golden_runs.py against HEAD~3          # this work tree beside a commit
    python tools/golden_runs.py make FOLDER             # the results of the strop that is imported
    python tools/golden_runs.py compare FOLDER FOLDER   # two such folders

Use it for changes that may not alter any result; it takes about three minutes. It compares the
weights, the state of the optimiser and of all parts, every metric except times, memory and
counts of the machine and of asynchronous collection (NOT_COMPARED), and loss, gradient and
advantages of each recipe on one random padded batch, or the message with which the recipe refuses
the batch.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SMALL = (
    "training.steps=4", "training.save_every=2", "training.lr=1e-3", "training.rollouts_every=0",
    "evaluation.every=0", "sampling.num_prompts=8", "sampling.num_rollouts=8", "--quiet",
)  # fmt: skip
RUNS = {
    "grpo": ("grpo",),
    "gigpo_corridor": ("gigpo", "data.task=corridor"),
    "vcpo_stale": ("vcpo", "engine.staleness=2"),
    "spo_tree_worked": (
        "spo_tree", "--model", "tiny-worked", "training.lr=1e-4", "sampling.num_prompts=4",
        "training.steps=2", "training.save_every=1",
    ),
    "areal_collector": ("areal_decoupled_ppo", "training.max_staleness=1"),
    "areal_two_trainers": ("areal_decoupled_ppo",),
}  # fmt: skip
NOT_COMPARED = ("timing_s/", "perf/", "memory/", "time", "step_time", "asynchronous/", "machine/")


def make(folder: Path) -> None:
    """Makes the runs, in one process each, and the padded calls."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in RUNS.items():
        start = [sys.executable, "-m"]
        if name.endswith("two_trainers"):
            start += ["torch.distributed.run", "--nproc_per_node=2", "-m"]
        first, *rest = words
        command = [*start, "strop", "train", first, *SMALL, *rest, "--out", str(folder / name)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (folder / "padded.json").write_text(json.dumps(padded(), indent=1), encoding="utf-8")


def padded() -> dict[str, Any]:
    """Every recipe's advantages, loss and gradient on one batch of six answers in two groups."""
    import torch

    from strop import functional

    torch.manual_seed(0)
    mask = torch.ones(6, 5, dtype=torch.int64)
    mask[1, 3:] = mask[4, 2:] = 0
    logp = torch.randn(6, 5, dtype=torch.float64) * 0.5 - 1.5
    given = {"logp_old": logp + torch.randn(6, 5, dtype=torch.float64) * 0.4, "mask": mask}
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 0], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    spread = torch.randn(6, 1, dtype=torch.float64).expand(6, 5) * mask

    def advantages(name: str) -> Any:
        return functional.advantages(name, rewards=rewards, groups=groups, mask=mask).tolist()

    def policy_loss(name: str) -> Any:
        leaf = logp.clone().requires_grad_()
        loss, metrics = functional.policy_loss(name, logp=leaf, advantages=spread, **given)
        loss.backward()
        return [loss.item(), metrics, leaf.grad.tolist()]

    listed = subprocess.run(
        [sys.executable, "-m", "strop", "recipes", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = {}
    for recipe in json.loads(listed.stdout):
        for call in (advantages, policy_loss):
            try:
                found[f"{call.__name__} {recipe['name']}"] = call(recipe["name"])
            except ValueError as refused:
                found[f"{call.__name__} {recipe['name']}"] = str(refused)
    return found


def compare(one: Path, other: Path) -> list[str]:
    """A line for each thing that differs."""
    import torch
    from safetensors.torch import load_file

    lines = []
    for name in RUNS:
        lines += [
            f"{name}: weights of {path.parent.name} differ"
            for path in checkpointed(one / name, other / name, "model*.safetensors", lines)
            if (one / name / path).read_bytes() != (other / name / path).read_bytes()
        ]
        for path in checkpointed(one / name, other / name, "trainer.pt", lines):
            states = [torch.load(side / name / path, weights_only=False) for side in (one, other)]
            lines += [f"{name} {path.parent.name}: {where}" for where in differing(*states)]
        lines += [
            f"{name}: {where}" for where in differing(metrics(one / name), metrics(other / name))
        ]
        weights = sorted((one / name).glob("checkpoints/*/model.safetensors"))
        first, last = load_file(weights[0]), load_file(weights[-1])
        if all(torch.equal(first[key], last[key]) for key in first):
            lines.append(f"{name}: training changed no weight, so the run shows nothing")
    calls = [
        json.loads((side / "padded.json").read_text(encoding="utf-8")) for side in (one, other)
    ]
    return lines + [f"padded: {where}" for where in differing(*calls)]


def checkpointed(one: Path, other: Path, names: str, lines: list[str]) -> list[Path]:
    """The files of checkpoints that both runs have; `lines` gets those that one of them lacks."""
    sides = [
        {path.relative_to(run) for path in run.glob(f"checkpoints/*/{names}")}
        for run in (one, other)
    ]
    lines += [f"{one / path} is missing" for path in sorted(sides[1] - sides[0])]
    lines += [f"{other / path} is missing" for path in sorted(sides[0] - sides[1])]
    return sorted(sides[0] & sides[1])


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(NOT_COMPARED)} for row in rows]


def differing(one: Any, other: Any, where: str = "") -> list[str]:
    """The places at which two nested values differ."""
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one.isnan(), other.isnan())
        numbers = [each.nan_to_num(0.0, math.inf, -math.inf) for each in (one, other)]
        return [] if same and torch.equal(*numbers) else [where]
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, dict):
        lines = [f"{where}/{key} is on one side only" for key in one.keys() ^ other.keys()]
        return lines + [
            line
            for key in one.keys() & other.keys()
            for line in differing(one[key], other[key], f"{where}/{key}")
        ]
    if isinstance(one, list | tuple) and len(one) == len(other):
        return [
            line
            for n, pair in enumerate(zip(one, other, strict=True))
            for line in differing(*pair, f"{where}/{n}")
        ]
    if isinstance(one, float) and math.isnan(one) and math.isnan(other):
        return []
    return [] if one == other else [f"{where}: {one!r} and {other!r}"[:300]]


def against(revision: str) -> list[str]:
    """Compares this work tree with one of its commits."""
    top = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as made:
        there = Path(made) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", there, revision], cwd=top, check=True)
        try:
            for name, tree in (("then", there), ("now", top)):
                environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
                command = [sys.executable, __file__, "make", str(Path(made) / name)]
                subprocess.run(command, check=True, cwd=made, env=environment)
            return compare(Path(made) / "then", Path(made) / "now")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=top, check=True)


def main() -> None:
    match sys.argv[1:]:
        case ["make", folder]:
            make(Path(folder))
        case ["compare", one, other]:
            lines = compare(Path(one), Path(other))
        case ["against", revision]:
            lines = against(revision)
        case _:
            raise SystemExit(__doc__)
    if sys.argv[1] != "make":
        print(
            "\n".join(lines) or f"{len(RUNS)} runs and all padded calls are the same, bit for bit"
        )
        raise SystemExit(bool(lines))


if __name__ == "__main__":
    main()
