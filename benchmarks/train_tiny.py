"""The scores that `strop train` reaches on the shipped model, and the time it takes.

    python benchmarks/train_tiny.py [--seeds 5] [--samples 16] [--k 1,16] [OPTION=VALUE ...]

Runs the command as a user types it once per seed and times the whole process, then scores the
shipped model and every run's last checkpoint on the held-out puzzles at temperature 1. Prints the
mean over seeds with a Student-t interval. Options are passed on to `strop train`.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from processes import output_of, train

from strop.evaluation.seeds import over_seeds


def scores(source: str, options: argparse.Namespace) -> dict[str, float]:
    """Held-out numbers of a model or run."""
    words = ["eval", source, "--json", "--k", options.k, "--samples", str(options.samples)]
    return json.loads(output_of("-m", "strop", *words))


def main() -> None:
    """Print a line per seed and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--k", default="1,16")
    parser.add_argument("--keep", type=Path, help="store the runs in this folder")
    parser.add_argument("options", nargs="*")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    names = [f"pass@{k}" for k in options.k.split(",")] + ["entropy", "completions/mean_length"]
    before = scores("tiny", options)
    print(f"{os.cpu_count()} cores; before: " + _text({n: before[n] for n in names}), flush=True)
    after, seconds = [], []
    for seed in range(options.seeds):
        run, started = folder / f"seed-{seed}", time.perf_counter()
        is_new = not run.exists()  # of a run that was there, or a part of it, the time is not known
        train(run, *options.options, f"seed={seed}")
        seconds += [time.perf_counter() - started] if is_new else []
        after.append(scores(str(run), options))
        shown = _text({n: after[-1][n] for n in names})
        print(f"seed {seed}: {f'{seconds[-1]:.0f} s' if is_new else 'kept'}, {shown}", flush=True)
    for name, values in {n: [a[n] for a in after] for n in names}.items():
        print(f"{name}: {before[name]:.3f} -> {over_seeds(values):.3f}, 95% over seeds")
    if seconds:
        print(f"seconds: mean {sum(seconds) / len(seconds):.0f}, largest {max(seconds):.0f}")


def _text(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


if __name__ == "__main__":
    main()
