"""Tests whether the reward still agrees with another evaluation of the same answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strop.diagnosis.finding import Finding
from strop.evaluation.run import REWARD

Metrics = Mapping[str, Any]
QUESTION = "Does the reward still say what the evaluation says?"
SCORE = "mean@n"
ADVICE = "read answers with a high reward (strop inspect RUN), fix the reward, and train again"


def parted(lines: Sequence[Metrics]) -> Finding | None:
    """How the evaluation's score and the reward of the same answers changed, in the worst set; None
    when nothing but the reward scores validations.

    lines: the metrics of a run, including those of step 0. Score and reward are means over prompts
    with 95% intervals. They part when the newest score's interval lies below that of the best one
    and the reward has not fallen since; or when the reward's interval lies above that of the first
    validation and the score has not risen.
    """
    found = [_of_a_set(name, lines) for name in sorted(set(_sets(lines)))]
    return max(found, key=lambda finding: finding.status == "problem", default=None)


def _sets(lines: Sequence[Metrics]) -> Iterator[str]:
    for line in lines:
        for name in line:
            if name.startswith("eval/") and name.endswith(f"/{REWARD}"):
                yield name.removeprefix("eval/").removesuffix(f"/{REWARD}")


def _of_a_set(name: str, lines: Sequence[Metrics]) -> Finding:
    """The finding from the validations of one set."""
    score, reward = f"eval/{name}/{SCORE}", f"eval/{name}/{REWARD}"
    scored = [
        line for line in lines
        if all(line.get(each + end) is not None for each in (score, reward)
               for end in ("", "/low", "/high"))
    ]  # fmt: skip
    if len(scored) < 2:
        return Finding(QUESTION, "unknown", f"{name} has had fewer than two validations.")
    first, now = scored[0], scored[-1]
    best = max(scored, key=lambda line: line[score])
    numbers = {
        f"{kind} {what}": line[key]
        for kind, line in (("first", first), ("best", best), ("newest", now))
        for what, key in (("score", score), ("reward", reward))
    }
    fell = now[f"{score}/high"] < best[f"{score}/low"] and now[reward] >= best[reward]
    flat = now[f"{reward}/low"] > first[f"{reward}/high"] and now[score] <= first[score]
    since = best if fell else first
    answer = (
        f"Since step {since['step']} the score of {name} went from {since[score]:.3g} to "
        f"{now[score]:.3g}, and the reward of the same answers from {since[reward]:.3g} to "
        f"{now[reward]:.3g}."
    )
    if fell or flat:
        return Finding(QUESTION, "problem", f"No. {answer}", ADVICE, numbers)
    return Finding(QUESTION, "ok", f"Yes. {answer}", numbers=numbers)
