"""Makes lengths of answers without a run: from a given distribution, or from a file.

MEAN,P99    log-normal; with a maximum, MEAN is the mean of the cut answers, as runs report it, and
            P99 is where the 99th percentile would be without the cut
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from strop.planning.course import Ints
from strop.support.errors import UserError
from strop.support.files import text_of

NUM_DRAWN = 4096  # number of lengths taken from a distribution
P99 = 2.3263478740408408  # the 99th percentile, in standard deviations
MOST_TOKENS = 1e9  # maximum of an answer


def log_normal(lengths: Sequence[float], size: int, most: float = math.inf) -> list[Ints]:
    """Groups of answers whose lengths have this mean and 99th percentile; without a percentile all
    have the same length.
    """
    mean, high = lengths[0], lengths[-1]
    widest = math.exp(P99**2 / 2)
    if not 1 <= mean <= high < min(widest * mean, MOST_TOKENS):
        raise UserError(
            f"--lengths {','.join(f'{each:g}' for each in lengths)}: the mean must be 1 or more, "
            f"the 99th percentile at least the mean, less than {widest:.0f} times as long and "
            f"less than {MOST_TOKENS:.0e} tokens"
        )
    if mean > most:
        raise UserError(f"--lengths {mean:g}: the mean is above --max-tokens {most:g}")
    sigma = P99 - math.sqrt(P99**2 - 2 * math.log(high / mean))
    drawn = np.random.default_rng(0).standard_normal(NUM_DRAWN // size * size or size)
    if most < math.inf:
        sigma = _cut(mean, high, most)
    found = np.exp(math.log(high) - P99 * sigma + sigma * drawn)
    return list(np.clip(found.round(), 1, most).astype(np.int64).reshape(-1, size))


def _cut(mean: float, high: float, most: float) -> float:
    """The sigma for which the cut lengths have this mean, by bisection."""
    low, up = 0.0, P99
    for _ in range(60):
        middle = (low + up) / 2
        level = math.log(high) - P99 * middle
        low, up = (middle, up) if _mean(level, middle, most) > mean else (low, middle)
    if abs(_mean(math.log(high) - P99 * up, up, most) / mean - 1) > 1e-3:
        raise UserError(
            f"--lengths {mean:g},{high:g}: no log-normal distribution that is cut at {most:g} has "
            "this mean and 99th percentile: give a file of lengths"
        )
    return up


def _mean(level: float, sigma: float, most: float) -> float:
    """The mean of a log-normal length that is cut at `most`."""
    if sigma == 0:
        return min(math.exp(level), most)
    above = (math.log(most) - level) / sigma
    below = 0.5 * math.erfc(-(above - sigma) / math.sqrt(2))
    return math.exp(level + sigma**2 / 2) * below + most * 0.5 * math.erfc(above / math.sqrt(2))


def read_lengths(path: Path, size: int) -> list[Ints]:
    """Groups of adjacent lines from a file with one whole number a line. Raises UserError."""
    words = text_of(path, "the lengths").split()
    wrong = next((word for word in words if not _is_length(word)), None)
    if wrong is not None or len(words) < size:
        why = f"{wrong} is no whole number from 1 to {MOST_TOKENS:.0e}"
        why = why if wrong else f"it has {len(words)} numbers"
        raise UserError(
            f"--lengths {path}: {why}; give the tokens of one answer in each line, for at least "
            f"{size} answers"
        )
    known = np.array([int(word) for word in words[: len(words) // size * size]], np.int64)
    return list(known.reshape(-1, size))


def regrouped(groups: Sequence[Ints], size: int) -> list[Ints]:
    """The same lengths in adjacent groups of `size`; the last lengths may be left out."""
    if all(len(group) == size for group in groups):
        return list(groups)
    known = np.concatenate(groups)
    return list(np.resize(known, (max(len(known) // size, 1), size)))


def _is_length(word: str) -> bool:
    return word.isascii() and word.isdecimal() and 1 <= int(word) <= MOST_TOKENS
