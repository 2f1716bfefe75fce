"""What few numbers do to intervals and maxima: the shares that the documentation states.

    python benchmarks/small_samples.py [--draws 4000]

Prints, for so many independent normal numbers, how often the 95% interval bootstrapped over them
(`strop.evaluation.summary.bootstrap`) holds their mean, and how far their largest lies above it on
average, in their standard deviations.
"""

import argparse

import numpy as np

from strop.evaluation.summary import bootstrap

SIZES = (2, 4, 5, 8, 10, 16, 64)


def coverage(values: np.ndarray) -> float:
    """The share of rows whose interval holds 0, their mean."""
    held = 0
    for seed, row in enumerate(values):
        mean = bootstrap({"mean": lambda c, row=row: c @ row / c.sum(-1)}, len(row), seed=seed)
        held += mean["mean"].low <= 0 <= mean["mean"].high
    return held / len(values)


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000)
    draws = parser.parse_args().draws
    rng = np.random.default_rng(0)
    print("numbers  interval holds the mean  largest above the mean")
    for size in SIZES:
        values = rng.normal(size=(draws, size))
        print(f"{size:7d}  {coverage(values):23.3f}  {values.max(-1).mean():22.2f}")


if __name__ == "__main__":
    main()
