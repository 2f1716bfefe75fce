"""Defines which charts the page shows, by section; a chart without any number is left out.

These are the charts of the trainer's own metrics. A part declares the charts of its metrics.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strop.method.charts import Curve, LineChart
from strop.report.charts import COLOURS, FEW_SEEDS, GREY, Chart, histogram, lines, stack
from strop.report.entropy_law import entropy_law
from strop.report.run_folder import Run
from strop.support.exits import FAILED, METRIC, Exit

SCORE = re.compile(r"eval/(?P<set>.+)/(?P<metric>(?:mean@n|(?:pass|maj)@\d+))")
TIMES = ("rollout", "reward", "refresh", "probes", "advantage", "update", "eval")
GROUPS = {
    "groups/frac_all_0": ("all wrong", COLOURS[1]),
    "groups/frac_mixed": ("mixed", GREY),
    "groups/frac_all_1": ("all right", COLOURS[2]),
}
TOKENS = {
    "answers": ("answers", COLOURS[0]),
    "rollout/tokens_thrown_away": ("discarded", COLOURS[1]),
    "services/tokens_sampled": ("drawn for parts", COLOURS[2]),
    "services/tokens_scored": ("scored for parts", COLOURS[3]),
}
REWARD = LineChart(
    "Reward", "Mean reward of the rollouts of each training step.", (Curve("reward"),), smooth=True
)
COVARIANCE = LineChart(
    "What moves entropy",
    "Of log-probabilities and advantages: above 0, likely tokens are reinforced and entropy falls.",
    (Curve("advantage/logp_covariance", "covariance"),),
    smooth=True,
    zero=False,
)
KL = LineChart(
    "Distance from the reference",
    "Estimated divergence from the reference policy, nats per token.",
    (Curve("kl", "KL"),),
)
LENGTH = LineChart(
    "Length",
    "Tokens per completion: mean, and shortest to longest where recorded.",
    (
        Curve(
            "completions/mean_length",
            "mean length",
            "completions/min_length",
            "completions/max_length",
        ),
    ),
)
CUT_OFF = LineChart(
    "Cut off by the limit",
    "Share of completions that reached the token limit.",
    (Curve("completions/clipped_ratio", "cut off"),),
    percent=True,
)
UNIFORM = LineChart(
    "Groups without a difference",
    "Share of groups whose rewards are all equal: a group baseline leaves them no signal.",
    (Curve("frac_reward_zero_std", "without a difference"),),
    percent=True,
)
GRADIENT = LineChart("Gradient norm", "Before clipping.", (Curve("grad_norm", "gradient norm"),))
MISMATCH = LineChart(
    "Sampler against trainer",
    "Mean absolute difference of log-probabilities, sampler against trainer, nats.",
    (Curve("sampling/sampling_logp_difference/mean", "difference"),),
)
RATE = LineChart("Learning rate", "As applied.", (Curve("learning_rate", "learning rate"),))
SPEED = LineChart(
    "Tokens per second",
    "Generated and trained on, over the whole step.",
    (Curve("perf/tokens_per_s", "Tokens per second"),),
    smooth=True,
)
MEMORY = LineChart(
    "Peak memory",
    "Gigabytes on the training device.",
    (Curve("perf/peak_mem_gb", "Peak memory"),),
    smooth=True,
)


def sections(runs: Sequence[Run]) -> list[tuple[str, list[Chart]]]:
    """Titles with their charts, in reading order; sections without a chart are left out."""
    found: dict[str, list[LineChart | Chart | None]] = {
        "Learning": [
            _reward(runs),
            _reward_parts(runs),
            *_scores(runs),
            *_parted(runs),
            *_rewards(runs),
        ],
        "Given answers": [_likelihood(runs), _order(runs)],
        "Exploration": [_entropy(runs), *_laws(runs), COVARIANCE, _entropy_control(runs), KL],
        "Completions": [LENGTH, CUT_OFF, _exits(runs), *_spread_lengths(runs)],
        "Groups": [UNIFORM, *(_groups(run, runs) for run in runs)],
        "Stability": [GRADIENT, _conflict(runs), _clipped(runs), MISMATCH, _staleness(runs), RATE],
        "Where the time went": [*(_times(run, runs) for run in runs), SPEED, MEMORY],
        "Where the tokens went": [_tokens(run, runs) for run in runs],
    }
    for brought in dict.fromkeys(chart for run in runs for chart in run.charts):
        _put(found.setdefault(brought.section, []), brought)
    drawn = {
        title: [lines(runs, each) if isinstance(each, LineChart) else each for each in charts]
        for title, charts in found.items()
    }
    kept = {title: [chart for chart in charts if chart] for title, charts in drawn.items()}
    return [(title, charts) for title, charts in kept.items() if charts]


def _reward(runs: Sequence[Run]) -> LineChart:
    """The mean reward, and beside it the mean over judged answers where the two differ."""
    if not set(_all_keys(runs, METRIC)) & {
        METRIC + cause.label for cause in Exit if cause >= FAILED
    }:
        return REWARD
    judged = Curve("reward_judged", "reward, failures left out")
    return replace(REWARD, curves=(*REWARD.curves, judged))


def _exits(runs: Sequence[Run]) -> LineChart | None:
    """How often answers ended by each cause, if there are causes that `CUT_OFF` does not show."""
    keys = _all_keys(runs, METRIC)
    if not set(keys) - {METRIC + Exit.TOKEN_LIMIT.label}:
        return None
    about = "Share of answers by what ended them or left them without a score of their own."
    curves = tuple(Curve(key, key.removeprefix(METRIC)) for key in keys)
    return LineChart("Exits by cause", about, curves, percent=True)


def _put(charts: list[LineChart | Chart | None], brought: LineChart) -> None:
    """Add a part's chart to a section, or its curves to the section's chart of the same title."""
    for index, other in enumerate(charts):
        if isinstance(other, LineChart) and other.title == brought.title:
            curves = dict.fromkeys((*other.curves, *brought.curves))
            charts[index] = replace(other, curves=tuple(curves))
            return
    charts.append(brought)


def score_keys(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """(key, evaluation set, metric) of every recorded evaluation score, each number once.

    pass@k, maj@k, mean@n; not maj@1, which is pass@1, and mean@n only when it differs from pass@1.
    """
    keys = dict.fromkeys(key for run in runs for key in run.numbers)
    matches = [match for key in keys if (match := SCORE.fullmatch(key))]
    found = [(match[0], match["set"], match["metric"]) for match in matches]
    there = {key for key, _, _ in found}

    def is_pass_at_1(key: str, name: str, metric: str) -> bool:
        other = f"eval/{name}/pass@1"
        if other not in there or metric not in ("maj@1", "mean@n"):
            return False
        return metric == "maj@1" or all(
            np.array_equal(run.series(key), run.series(other)) for run in runs
        )

    return sorted((each for each in found if not is_pass_at_1(*each)), key=_rank)


def _shares(runs: Sequence[Run], curves: Sequence[Curve]) -> bool:
    return all(run.is_share(curve.key) for run in runs for curve in curves)


def _rank(score: tuple[str, str, str]) -> tuple[str, int, int]:
    """Sort key: set by set, pass@k by k, then maj@k, then mean@n."""
    _, name, metric = score
    kind, _, k = metric.partition("@")
    return name, ("pass", "maj", "mean").index(kind), int(k) if k.isdigit() else 0


def _all_keys(runs: Sequence[Run], start: str, end: str = "") -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in run.numbers)
    return [key for key in keys if key.startswith(start) and key.endswith(end)]


def _reward_parts(runs: Sequence[Run]) -> LineChart | None:
    keys = _all_keys(runs, "rewards/", "/mean")
    curves = tuple(Curve(key, key.split("/", 1)[1][:-5]) for key in keys)
    text = "Mean of each reward, before weights."
    return LineChart("Reward parts", text, curves, smooth=True) if len(curves) > 1 else None


def _rewards(runs: Sequence[Run]) -> list[Chart | None]:
    return [histogram(r, _of("Rewards of a step", r, runs), "rewards", "reward") for r in runs]


def _spread_lengths(runs: Sequence[Run]) -> list[Chart | None]:
    return [histogram(r, _of("Lengths of a step", r, runs), "lengths", "tokens") for r in runs]


def _scores(runs: Sequence[Run]) -> list[LineChart]:
    by_set: dict[str, list[Curve]] = {}
    for key, name, metric in score_keys(runs):
        by_set.setdefault(name, []).append(Curve(key, metric, f"{key}/low", f"{key}/high"))
    text = "Held-out prompts; the shaded band is the interval over prompts, where recorded."
    if sizes := [len(run.members) for run in runs if run.members]:
        many = "the shaded band is the interval over seeds"
        text = f"Held-out prompts; {'a thin line is a seed' if min(sizes) < FEW_SEEDS else many}."
    return [
        LineChart(f"Evaluation: {name}", text, curves, percent=_shares(runs, curves))
        for name, curves in ((name, tuple(several)) for name, several in by_set.items())
    ]


def _parted(runs: Sequence[Run]) -> list[LineChart]:
    """Reward and score of the same answers, for each set that is not scored by the reward."""
    text = "Of the same answers; where the lines part, the policy exploits flaws of the reward."
    return [
        LineChart(f"Reward and evaluation: {name}", text, tuple(
            Curve(f"eval/{name}/{key}", label, f"eval/{name}/{key}/low", f"eval/{name}/{key}/high")
            for key, label in (("mean@n", "evaluation"), ("training_reward", "reward"))
        ))
        for key in _all_keys(runs, "eval/", "/training_reward")
        for name in (key.removeprefix("eval/").removesuffix("/training_reward"),)
    ]  # fmt: skip


def _likelihood(runs: Sequence[Run]) -> LineChart:
    curves = tuple(Curve(key, key.split("/")[1]) for key in _all_keys(runs, "eval/", "/nll"))
    text = "Of the answers in the data, the preferred ones of pairs; nats per token."
    return LineChart("Negative log-likelihood", text, curves)


def _order(runs: Sequence[Run]) -> LineChart:
    """The chart of evaluation pairs; parts add the curve of the pairs that they learn from."""
    found = [key for key in _all_keys(runs, "eval/") if "_accuracy" in key.rpartition("/")[2]]
    curves = tuple(Curve(key, key.removeprefix("eval/").replace("_", " ")) for key in found)
    text = "Share of pairs of which the preferred answer is the likelier one."
    return LineChart("Pairs in the right order", text, curves, percent=True)


def _entropy(runs: Sequence[Run]) -> LineChart:
    curve = Curve("entropy", "entropy", "entropy_control/low", "entropy_control/high")
    text = "Nats per generated token; the shaded band is where a controller holds it."
    if not _all_keys(runs, "entropy_control/low"):
        text = "Nats per generated token; near 0 the policy no longer explores."
    return LineChart("Entropy", text, (curve,), smooth=True)


def _laws(runs: Sequence[Run]) -> list[Chart | None]:
    """One chart for each evaluation set, showing its first score."""
    first: dict[str, tuple[str, str]] = {}
    for key, name, metric in score_keys(runs):
        first.setdefault(name, (key, metric))
    return [entropy_law(runs, name, key, metric) for name, (key, metric) in first.items()]


def _entropy_control(runs: Sequence[Run]) -> LineChart:
    limits = ("entropy_control/low", "entropy_control/high")
    keys = [key for key in _all_keys(runs, "entropy_control/") if key not in limits]
    curves = tuple(Curve(key, key.removeprefix("entropy_control/")) for key in keys)
    text = f"What the controller records: {', '.join(curve.label for curve in curves)}."
    return LineChart("Entropy controller", text, curves, zero=False)


def _groups(run: Run, runs: Sequence[Run]) -> Chart | None:
    text = "Share of prompt groups whose rollouts are all wrong, mixed or all right."
    return stack(run, _of("Groups by outcome", run, runs), text, GROUPS, percent=True)


def _conflict(runs: Sequence[Run]) -> LineChart:
    """The cosines of the gradients of all measured pairs of terms."""
    keys = [key for key in _all_keys(runs, "conflict/", "/all") if key.count("/") == 2]
    curves = tuple(Curve(key, key.split("/")[1].replace("_", " and ")) for key in keys)
    text = "Cosine of the gradients of two terms of the loss; below 0 they pull apart."
    return LineChart("Terms of the loss", text, curves, zero=False)


def _clipped(runs: Sequence[Run]) -> LineChart:
    """The clipped share on both sides together and, if anything was clipped, on each side."""
    text = "Share of tokens whose probability ratio lies outside the clip range."
    region, low, high = (f"clip_ratio/{side}_mean" for side in ("region", "low", "high"))
    curves = [Curve(region, "on either side")]
    if any(run.series(key)[1].any() for run in runs for key in (low, high)):
        curves += [Curve(low, "below"), Curve(high, "above")]
    return LineChart("Clipped tokens", text, tuple(curves), percent=True)


def _staleness(runs: Sequence[Run]) -> LineChart:
    """The age of rollouts drawn by old weights and of replayed ones; no curve when all are new."""
    curves = [
        Curve("sampling/age_steps", "of the weights that drew a token"),
        Curve("replay/age_mean", "of replayed rollouts"),
    ]
    used = [curve for curve in curves if any(run.series(curve.key)[1].any() for run in runs)]
    return LineChart("Age", "Mean age, in steps.", tuple(used))


def _tokens(run: Run, runs: Sequence[Run]) -> Chart | None:
    """The tokens of kept answers, and those that were generated or scored for other purposes."""
    steps, at, where = np.intersect1d(
        run.series("num_rollouts")[0],
        run.series("completions/mean_length")[0],
        assume_unique=True,
        return_indices=True,
    )
    answers = run.series("num_rollouts")[1][at] * run.series("completions/mean_length")[1][where]
    whole = replace(run, numbers={**run.numbers, "answers": (steps, answers)})
    text = "Tokens of kept answers, and tokens beside them."
    return stack(whole, _of("Tokens of a step", run, runs), text, TOKENS, percent=False)


def _times(run: Run, runs: Sequence[Run]) -> Chart | None:
    known = [f"timing_s/{name}" for name in TIMES]
    others = sorted(set(_all_keys([run], "timing_s/")) - {*known, "timing_s/step"})
    colours = (*COLOURS, GREY)
    labels = {
        key: (key.removeprefix("timing_s/"), colours[i % len(colours)])
        for i, key in enumerate(known + others)
    }
    return stack(run, _of("Seconds of a step", run, runs), "By stage.", labels, percent=False)


def _of(title: str, run: Run, runs: Sequence[Run]) -> str:
    return title if len(runs) == 1 else f"{title}: {run.name}"
