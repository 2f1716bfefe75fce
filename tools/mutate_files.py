"""Run the mutants that mutate.py let survive, in files, so that other processes run them too.

    python tools/mutate_files.py FOLDER [--limit 120]

FOLDER is an --out of mutate.py. Each of its mutants that passed all tests or was not reached is
written into its module's file in a copy of the tree, and the module's tests run in a new process:
first the file with its name, then those that import it, then those of its room, as long as they fit
into --limit seconds on unchanged code. A mutant that takes three times that long counts as noticed.
Results are stored in FOLDER/files.jsonl, from which a run resumes. Survivors are printed, and then
the exit code is 1.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from mutants import ROOT, Mutant, append, imports, key_of, lines_of, mutants, tests_of

WORDS = ("-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider")


class Tree:
    """A copy of the tree, in which one file is changed."""

    def __init__(self, place: Path, limit: float) -> None:
        self.place, self.limit = place, limit
        hidden = shutil.ignore_patterns(".git", "__pycache__", "site", ".*_cache")
        shutil.copytree(ROOT, place, symlinks=True, ignore=hidden)
        self.seconds: dict[str, float | None] = {}  # of tests; None: too many

    def run(self, places: list[str], limit: float) -> bool | None:
        """Whether tests pass; None if they take longer than `limit` seconds."""
        words = [sys.executable, *WORDS, f"--basetemp={self.place / 'made'}", *places]
        known = {**os.environ, "PYTHONPATH": str(self.place / "src"), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            words, cwd=self.place, env=known, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def tests(self, module: str) -> tuple[list[str], float]:
        """A module's tests that pass in time on unchanged code, and their seconds."""
        chosen, total = list[str](), 0.0
        for place in nearest(module):
            if place not in self.seconds:
                started = time.monotonic()
                passed = self.run([place], self.limit)
                self.seconds[place] = time.monotonic() - started if passed else None
            seconds = self.seconds[place]
            if seconds is not None and total + seconds <= self.limit:
                chosen.append(place)
                total += seconds
        return chosen, total

    def noticed(self, module: str, mutant: Mutant, places: list[str], seconds: float) -> bool:
        """Whether a test fails, or takes too long, while the file holds the mutant."""
        path = self.place / "src" / (module.replace(".", "/") + ".py")
        before = path.read_text(encoding="utf-8")
        path.write_text(mutant.source, encoding="utf-8")
        try:
            return not self.run(places, 20 + 3 * seconds)
        finally:
            path.write_text(before, encoding="utf-8")


def nearest(module: str) -> list[str]:
    """Test files of a module; those with its name come first."""
    own = f"test_{module.rpartition('.')[2]}.py"
    files = set[str]()
    for place in tests_of(module):
        path = ROOT / place
        found = path.rglob("test_*.py") if path.is_dir() else [path]
        files |= {each.relative_to(ROOT).as_posix() for each in found}
    return sorted(
        files, key=lambda file: (not file.endswith(own), module not in imports()[file], file)
    )


def main() -> int:
    """Run the mutants without a result and print the survivors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="an --out of mutate.py")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a mutant's tests")
    options = parser.parse_args()
    if not (options.folder / "mutants.jsonl").is_file():
        parser.error(f"{options.folder} has no mutants.jsonl: give an --out of mutate.py")
    results = options.folder.absolute() / "files.jsonl"
    done = {row["mutant"] for row in lines_of(results)}
    left: dict[str, list[str]] = {}
    newest = {row["mutant"]: row for row in lines_of(options.folder / "mutants.jsonl")}
    for row in newest.values():
        if not row["noticed"] and row["mutant"] not in done:
            left.setdefault(row["mutant"].partition(":")[0], []).append(row["mutant"])
    with TemporaryDirectory() as made:
        tree = Tree(Path(made) / "tree", options.limit)
        for module, keys in sorted(left.items()):
            source = (ROOT / "src" / (module.replace(".", "/") + ".py")).read_text("utf-8")
            places, seconds = tree.tests(module)
            for mutant in mutants(source):
                if (key := key_of(module, mutant)) in keys:
                    noticed = bool(places) and tree.noticed(module, mutant, places, seconds)
                    append(results, {"mutant": key, "noticed": noticed, "tests": places})
                    if not noticed:
                        print(f"{key} in {mutant.function}: survives {places}", flush=True)
    rows = lines_of(results)
    survivors = sum(not row["noticed"] for row in rows)
    print(f"{len(rows)} mutants in files, {survivors} survived")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
