"""Reads a run's measurements of the gradients of its loss terms (training.conflict_every)."""

from itertools import permutations
from statistics import stdev
from typing import Any

from strop.diagnosis.finding import Finding, mean

SHARE = "conflict/share/"
BLOCKS = ("head", "lower", "upper")
FEWEST = 5  # minimum number of measurements to judge
SURE = 2.0  # standard errors
LOST = 0.05  # share of the gradient's length


def conflict(run: Any) -> Finding:
    """Whether two terms of the loss pull the weights apart, by more than noise does."""
    question = "Do two terms of the loss pull apart?"
    names = dict.fromkeys(name for line in run.lines for name in line if name.startswith(SHARE))
    pairs = permutations((name.removeprefix(SHARE) for name in names), 2)
    measured = [found for one, other in pairs if (found := _pair(run, one, other)) is not None]
    if not measured:
        answer = f"Fewer than {FEWEST} steps measured two terms on two halves of their prompts."
        return Finding(question, "unknown", answer, "set training.conflict_every to fewer steps")
    numbers: dict[str, Any] = {key: value for each, _, _ in measured for key, value in each.items()}
    answer = " ".join(text for _, text, _ in measured)
    if not any(costly for _, _, costly in measured):
        return Finding(question, "ok", answer, numbers=numbers)
    advice = "a penalty may be there to hold another term back, and this is its price; else lower "
    advice += "the coefficient of the one that matters less (terms.NAME.coef), and compare both "
    advice += "ways on the same seeds: strop compare"
    return Finding(question, "note", answer, advice, numbers)


def _pair(run: Any, one: str, other: str) -> tuple[dict[str, float], str, bool] | None:
    """Numbers, sentences, and whether two terms pull apart by more than noise and at a cost; None
    when they were not measured often enough, or in the other order.
    """
    pair = f"{one}_{other}"
    across = run.series(f"conflict/across/{pair}/all")
    series = {
        "cosine": f"conflict/{pair}/all",
        f"{one} with itself": f"conflict/floor/{one}/all",
        f"{other} with itself": f"conflict/floor/{other}/all",
        f"share of {one}": SHARE + one, f"share of {other}": SHARE + other,
        **{block: f"conflict/{pair}/{block}" for block in BLOCKS},
    }  # fmt: skip
    found = {name: mean(run.series(key)) for name, key in series.items() if run.series(key)}
    if len(across) < FEWEST or len(found.keys() - {*BLOCKS}) < len(series) - len(BLOCKS):
        return None
    cosine, held, error = found["cosine"], mean(across), stdev(across) / len(across) ** 0.5
    lost = _lost(found[f"share of {one}"], found[f"share of {other}"], cosine)
    blocks = ", ".join(f"{block} {found[block]:.2f}" for block in BLOCKS if block in found)
    text = (
        f"{one} and {other}: cosine {cosine:.2f} ({blocks}); across halves of the prompts "
        f"{held:.2f}, error {error:.2f}; {one} with itself has "
        f"{found[f'{one} with itself']:.2f} and {other} {found[f'{other} with itself']:.2f}. "
    )
    apart = held < -SURE * error
    text += f"They pull apart, which takes {lost:.0%} of the gradient's length." if apart else (
        "They do not pull apart by more than noise."
    )  # fmt: skip
    more = {"across halves": held, "error": error, "lost": lost}
    numbers = {f"{one}, {other}: {name}": value for name, value in {**found, **more}.items()}
    return numbers, text, apart and lost > LOST


def _lost(one: float, other: float, cosine: float) -> float:
    """The share by which the sum of two gradients of these norms is shorter than if they were
    orthogonal.
    """
    apart = one**2 + other**2
    return 1 - max(0.0, 1 + 2 * cosine * one * other / apart) ** 0.5 if apart > 0 else 0.0
