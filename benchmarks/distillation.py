"""How fast a policy learns from a teacher, compared with the reward, at equal tokens.

    python benchmarks/distillation.py [--seeds 3] [--steps 20] [--teacher FOLDER] [--keep FOLDER]
        [--only NAME...]

The teacher is the shipped model `tiny` after 90 steps of `grpo` on Countdown with 32 groups of 16
answers (or --teacher). The policy starts as `tiny` and answers 32 prompts four times a step in
every method, at one learning rate. `opsd` has no teacher except itself, with the right answer
before the prompt. `tiny` has never read such prompts, so `opsd` is also started from weights that
have seen 40 batches of them with their answers, and so is `grpo`. The output has pass@1 and the
entropy on held-out puzzles at every validation, as means over seeds with the least and the
largest, and the number of sampled tokens.
"""

import argparse
import json
import tempfile
from pathlib import Path

from floor_settings import teacher as taught_by
from processes import train

from strop.environments.countdown import puzzles
from strop.tracking.metrics_file import lines_of

OPSD = r"opsd(column='completion', words='{answer}\n{prompt}')"

METHODS = {
    "grpo": "grpo",
    "on_policy_distillation": "on_policy_distillation",
    "vopd": "vopd",
    "gkd, reverse": "gkd(divergence='reverse')",
    "gkd": "gkd",
    "distillation and rewards": "on_policy_distillation(rewards=True)",
    "opsd": OPSD,
}
AFTER_HINTS = {
    "grpo, after hints": "grpo",
    "opsd, after hints": OPSD,
    "opsd of drawn tokens, after hints": OPSD.replace("(", "(sampled=True, "),
}


def read_hints(folder: Path) -> Path:
    """The newest weights of a run that has learnt to use the answer before a prompt."""
    rows = folder / "hints.jsonl"
    with rows.open("w", encoding="utf-8") as file:
        for row in puzzles("train"):
            answer, prompt = row["completion"], row["prompt"]
            file.write(json.dumps({"prompt": f"{answer}\n{prompt}", "completion": answer}) + "\n")
    train(
        folder / "hints", "sft", "--model", "tiny", "--data", str(rows), "training.steps=40",
        "training.lr=1e-3", "sampling.num_prompts=64", "evaluation.every=0",
    )  # fmt: skip
    return sorted((folder / "hints" / "checkpoints").glob("step-*"))[-1]


def validations(folder: Path) -> list[tuple[int, float, float, float]]:
    """Step, pass@1, entropy and tokens sampled so far, for each validation."""
    found, tokens = [], 0.0
    for line in lines_of(folder):
        tokens += line.get("num_rollouts", 0) * line.get("completions/mean_length", 0)
        if (score := line.get("eval/validation/pass@1")) is not None:
            found.append((line["step"], score, line["eval/validation/entropy"], tokens))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", default="3e-4")
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--keep", type=Path, help="store the runs in this folder")
    parser.add_argument("--only", nargs="*", default=[*METHODS, *AFTER_HINTS],
                        choices=[*METHODS, *AFTER_HINTS], help="methods")  # fmt: skip
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    taught = {name for name in METHODS if name not in ("grpo", "opsd")}
    start = read_hints(folder) if AFTER_HINTS.keys() & set(options.only) else None
    teacher = options.teacher
    if teacher is None and taught & set(options.only):
        teacher = taught_by(folder)
        ends = validations(folder / "teacher")
        print(f"teacher: pass@1 {ends[0][1]:.3f} to {ends[-1][1]:.3f}", flush=True)
    for name, method in (METHODS | AFTER_HINTS).items():
        if name not in options.only:
            continue
        found = []
        for seed in range(options.seeds):
            run = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            words = [
                method, f"seed={seed}", f"training.steps={options.steps}", "evaluation.every=5",
                f"training.lr={options.lr}", "evaluation.num_samples=8",
                "sampling.num_prompts=32", "sampling.num_rollouts=4",
                *([f"model.reference={teacher}"] if name in taught else []),
                *(["--model", str(start), "--task", "countdown"] if name in AFTER_HINTS else []),
            ]  # fmt: skip
            found.append(validations(train(run, *words)))
        for rows in zip(*found, strict=True):
            scores = [row[1] for row in rows]
            entropy, tokens = (sum(row[n] for row in rows) / len(rows) for n in (2, 3))
            print(
                f"{name}, step {rows[0][0]}: pass@1 {sum(scores) / len(scores):.3f} "
                f"({min(scores):.3f} to {max(scores):.3f}), entropy {entropy:.2f}, "
                f"{tokens:.0f} tokens",
                flush=True,
            )


if __name__ == "__main__":
    main()
