"""Names and definitions of the numbers of a comparison."""

import re
from typing import NamedTuple

from strop.comparison.plan import Scoring


class Number(NamedTuple):
    """A number's name and its definition, in a sentence."""

    name: str
    meaning: str


HELDOUT = {
    "mean@n": Number("mean reward", "mean score of a prompt's answers, over the prompts"),
    "entropy": Number("entropy, nats", "mean over all tokens of the answers"),
    "completions/mean_length": Number("length, tokens", "mean over the answers"),
    "distinct_fraction": Number("distinct share", "distinct answers / answers of a prompt"),
    "ece": Number(
        "calibration error", "expected calibration error: |share right - confidence| over ten bins"
    ),
    "auc": Number("calibration AUC", "chance that a right answer is surer than a wrong one"),
}
AT_K = {
    "pass": "chance that one of {k} answers is right, unbiased",
    "maj": "chance that the most frequent of {k} answers is right",
    "distinct": "expected number of distinct answers among {k}",
}
LATE = 10  # steps at the end over which training numbers are averaged
TRAINING = {
    "reward": Number("reward in training", f"mean of the last {LATE} steps' rollouts"),
    "entropy": Number("entropy in training, nats", f"mean of the last {LATE} steps' rollouts"),
    "completions/mean_length": Number(
        "length in training, tokens", f"mean of the last {LATE} steps' rollouts"
    ),
}
SPENT = {
    "sampled": Number("tokens sampled", "by training until then, discarded ones too"),
    "trained": Number("tokens trained on", "those of answers with a gradient, each once a step"),
    "seconds": Number(
        "seconds", "of training until then, without validation; beside the runs of other methods"
    ),
}


def number_of(key: str, scoring: Scoring) -> Number:
    """The name and definition of a number by its key."""
    known = {**HELDOUT, **{f"late/{k}": n for k, n in TRAINING.items()}, **SPENT}
    if key in known:
        return known[key]
    kind, _, k = key.partition("@")
    if kind in AT_K and k.isdigit():
        name = f"distinct answers of {k}" if kind == "distinct" else key
        alone = "chance that an answer is right"
        return Number(name, alone if key == "pass@1" else AT_K[kind].format(k=k))
    if key == "band":
        return Number("steps inside the band", _band(scoring))
    if key == "below":
        return Number("steps below the band", _band(scoring))
    if key.startswith("mean/"):
        name = key.removeprefix("mean/")
        return Number(f"{name}, mean over the steps", "of metrics.jsonl")
    if found := re.fullmatch(r"(reached|steps|sampled|seconds) to (.*)", key):
        return _to_target(*found.groups())
    return Number(key, "as validation logs it, see docs/METRICS.md")


def _band(scoring: Scoring) -> str:
    edges = f"{scoring.band[0]:g} to {scoring.band[1]:g} nats" if scoring.band else "the method's"
    return (
        f"share of the steps by their entropy in training; the band is {edges}, and the first "
        "quarter of the steps, the way to it, does not count"
    )


def _to_target(what: str, target: str) -> Number:
    if what == "reached":
        return Number(f"reached {target}", "share of the runs whose validation ever did")
    spent = "tokens sampled" if what == "sampled" else what
    return Number(
        f"{spent} to {target}", "at the first validation that reached it; of the runs that did"
    )
