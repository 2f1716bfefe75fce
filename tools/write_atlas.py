"""Write docs/ATLAS.md: all recipes compared with grpo on paired seeds, from the rows of the atlas.

python benchmarks/atlas.py four --hours 6     # makes rows, for hours and on any machine
python tools/write_atlas.py                   # writes the page, in seconds
"""

import argparse
import functools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import atlas_numbers as numbers
import numpy as np
from atlas_numbers import Pair, Row
from docsite.known import Known, numbers_of, tables

from strop.api.options import settings_of
from strop.comparison.verdict import FEWEST_SEEDS, Compared
from strop.evaluation.seeds import SHARE, paired_difference
from strop.evaluation.top_k import sharpe_ratio_at_k
from strop.support.tables import read_rows

DOCS = Path(__file__).parents[1] / "docs"
ROWS, PAGE = DOCS / "evidence" / "atlas", DOCS / "ATLAS.md"
REGIMES = {
    "tiny": "16 prompts with 8 answers, 100 steps of `tiny` on Countdown; `grpo` makes one update",
    "four": "The same with four minibatches a step and a learning rate from 1e-3 to 0",
    "own": "`tiny`, with the options under which alone a recipe is itself, for it and for `grpo`",
    "worked": "`tiny-worked` on puzzles with worked answers, 8 prompts with 8 answers, 40 steps",
    "own_worked": "`worked`, with such options",
    "corridor": "Episodes in the corridor, 16 with 8 each, 100 steps",
    "calculator": "Sums with a calculator to call, 32 with 16 episodes each, 60 steps",
    "kernel_timing": "Episodes of fusing operations into a fast kernel, 16 with 8 each, 60 steps",
    "gemma": "Gemma 3 270M with adapters of rank 8 on sums of two or three digits, eight prompts "
    "with eight answers and four updates a step, 20 steps",
}
OWN = ("own", "own_worked")  # there `grpo` has the options of the recipe
HEADER = """# The atlas: all recipes compared with grpo

    python benchmarks/atlas.py four --hours 6    # makes missing rows
    python tools/write_atlas.py                  # writes this page from docs/evidence/atlas/

**What this page does not show.** The models have 0.33 and 1.1 million weights, in `gemma` 270
million; the tasks are puzzles, sums and corridors, and a run has some dozens of steps. No recipe
was tuned: each has its defaults, all share one learning rate, and another rate can reverse an
order; see [equal tuning](evidence/equal_tuning.md) of thirteen. A recipe that ends below
`grpo` here does so in this setting; the page says nothing about large models. Seconds were measured
on machines that did other work too.

A recipe makes its own number of updates a step (`-`: it depends on the batch), at the rate that all
share, so many updates go further (in `worked` a second table has `grpo` with as many); it draws its
own prompts and has the sizes that `benchmarks/floor_settings.py` gives it. Tokens and the last two
columns show what that costs. A recipe and `grpo` of one seed start from the same data on one kind
of machine. A difference is the mean of these pairs with its 95% interval, which stays within the
range of the number. It is decided as in [compare](COMPARE.md#what-is-decided-and-how): from five
seeds on, with Holm's correction over the recipes of the regime. *Resolves* is the difference that
so many seeds find in 8 of 10 such comparisons. Final scores are of 512 held-out puzzles (with
worked answers: 256) with 16 answers each; those of `corridor`, `calculator` and `kernel_timing` are
of 100 held-out starts with 16 episodes, of `gemma` of 64 sums with 4. The teacher of `gkd`, `vopd`
and `on_policy_distillation` is `tiny` after 90 steps of `grpo`.

*Asymptote, efficiency, midpoint* are those of `R(C) = R_0 + (A - R_0) / (1 + (M / C)^B)` (arXiv
2510.13786), fitted to validation pass@1 over steps, averaged over seeds, with the intervals of 95%
of the fits to bootstrapped seeds. With so few seeds these are too narrow: that of a normal mean
holds it in 83% of cases with five, and in 90% with ten
(`python benchmarks/small_samples.py`). A limit of 0 or inf is beyond the
efficiencies (0.25 to 8) and midpoints (to the last step) that were searched. Where the fit is not
determined, the reason stands in their place. *At sampled* and *at trained* are differences in
validation pass@1 at the point where both sides had spent as much as the thriftier one spent in all.
Ratios are to `grpo`. Stages are those at which a recipe differs from its parent.

Written by `python tools/write_atlas.py`; change the rows, not this file.
"""
ONCE = (1, 1, 1)  # a plan of one update
AUDITED = ("bias", "noise", "four", "price")  # columns of the audit
HEAD = (
    "recipe", "stages", "updates", "seeds", "pass@1", "difference", "resolves", "verdict",
    "asymptote", "efficiency", "midpoint", "pass@16", "entropy late", "ece", "length", "tokens",
    "seconds", "at sampled", "at trained",
)  # fmt: skip


def _gap(found: Compared | None) -> str:
    gap = found.difference if found else None
    return "-" if gap is None else f"{gap:+.3f}"


def _ratio(pairs: Sequence[Pair], column: str) -> str:
    """Geometric mean over the pairs of ours / theirs."""
    both = [(float(a[column] or 0), float(b[column] or 0)) for a, b in pairs]
    logs = [math.log(a / b) for a, b in both if a > 0 and b > 0]
    return f"{math.exp(float(np.mean(logs))):.2f}" if logs else "-"


def _at(pairs: Sequence[Pair], by: str) -> str:
    both = numbers.at_tokens(pairs, by)
    if not both:
        return "-"
    return f"{paired_difference(*zip(*both, strict=True), within=SHARE):+.3f}"


@functools.cache
def _plan(words: str) -> tuple[int | None, ...]:
    """Updates, epochs and minibatches of a step; None where they depend on the batch."""
    plan = settings_of(shlex.split(words), {}, None).build().algorithms[0].plan
    assert plan is not None
    names = ("num_updates", "num_epochs", "num_minibatches")
    return tuple(getattr(plan.part, name, None) for name in names)


def _updates(row: Row) -> str:
    return str(_plan(row["words"])[0] or "-")


def equal_updates(pairs: Mapping[str, list[Pair]], rows: Sequence[Row]) -> list[str]:
    """A table of `grpo` with several updates beside itself with one, and of recipes that make
    several beside `grpo` with as many; empty where `grpo` was run with one alone.
    """
    bases = {
        (_plan(row["words"]), row["seed"], row["machine"]): row for row in rows
        if row["words"] == row["baseline"] and not row["error"]
    }  # fmt: skip
    found: dict[tuple[str, str], list[Pair]] = {}
    for (plan, *at), base in bases.items():
        if plan != ONCE and (one := bases.get((ONCE, *at))) is not None:
            found.setdefault((_grpo(plan), _grpo(ONCE)), []).append(Pair(base, one))
    for name, several in pairs.items():
        for ours, theirs in several:
            plan = _plan(ours["words"])
            base = bases.get((plan, ours["seed"], ours["machine"]), theirs)
            if base["words"] != theirs["words"]:
                found.setdefault((f"`{name}`", _grpo(plan)), []).append(Pair(ours, base))
    compared = numbers.compared({name: of for (name, _), of in found.items()}, "pass@1")
    lines = [
        [name, beside, str(len(of)), f"{compared[name].mean.value:.3f}", _gap(compared[name]),
         _resolves(compared[name]), compared[name].verdict or "-"]
        for (name, beside), of in sorted(found.items(), key=lambda each: each[0][::-1])
    ]  # fmt: skip
    if not lines:
        return []
    head = _table("method", "beside", "seeds", "pass@1", "difference", "resolves", "verdict")
    told = (
        "`grpo` with several updates a step beside itself with one, and recipes that make several "
        "beside `grpo` with as many; corrected over this table:"
    )
    return [f"\n{told}\n", *head, *(f"| {' | '.join(cells)} |" for cells in lines)]


def _grpo(plan: tuple[int | None, ...]) -> str:
    _, epochs, minibatches = plan
    more = f", {epochs} epochs" if epochs != 1 else ""
    return f"`grpo`{more}" + (f", {minibatches} minibatches" if minibatches != 1 else "")


def _resolves(found: Compared) -> str:
    if not math.isfinite(found.resolves):
        return "-"
    return "more than 1" if found.resolves > 1 else f"{found.resolves:.3f}"


def _fit(rows: Sequence[Row]) -> tuple[str, str, str]:
    steps = int(rows[0]["steps"])
    curves = np.array([numbers.series(row, "curve") for row in rows])
    found = numbers.fitted(curves, np.linspace(0, steps, curves.shape[1]))
    if found.why:
        return (f"not determined: {found.why}", "-", "-")
    a, b, m = (f"{x:.3g} ({low:.3g} to {high:.3g})" for x, low, high in found[:3])
    return a, b, m


def lines_of(pairs: Mapping[str, list[Pair]], stages: Mapping[str, Sequence[str]]) -> list[str]:
    """One line per recipe, the smallest difference first."""
    by = {name: numbers.compared(pairs, name) for name in ("pass@1", "pass@16", "entropy_late",
                                                           "ece")}  # fmt: skip
    gains, lines = numbers.gains(pairs), []
    for name in sorted(pairs, key=lambda each: gains[each]):
        several, first = pairs[name], by["pass@1"][name]
        cells = [
            f"`{name}`", ", ".join(stages.get(name, ())), _updates(several[0].ours),
            str(len(several)),
            f"{first.mean.value:.3f}", _gap(first), _resolves(first), first.verdict or "-",
            *_fit([pair.ours for pair in several]),
            *(_gap(by[column].get(name)) for column in ("pass@16", "entropy_late", "ece")),
            *(_ratio(several, column) for column in ("length", "sampled", "seconds")),
            _at(several, "sampled_at"), _at(several, "trained_at"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _repeated(pairs: Mapping[str, list[Pair]]) -> list[str]:
    """Groups of recipes, `grpo` among them, whose runs have the same final scores and curves, in
    the seeds that all recipes have.
    """
    columns = ("seed", "pass@1", "pass@16", "sampled", "curve")
    seeds = [{pair.ours["seed"] for pair in several} for several in pairs.values()]
    shared = set.intersection(*seeds) if seeds else set[str]()
    by_numbers: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, several in pairs.items() if shared else ():
        ours, theirs = (
            tuple(tuple(row[column] for column in columns) for row in rows)
            for rows in zip(
                *((pair.ours, pair.theirs) for pair in several if pair.ours["seed"] in shared),
                strict=True,
            )
        )
        by_numbers.setdefault(ours, []).append(name)
        if ours == theirs:
            by_numbers[ours].insert(0, "grpo")
    found = [sorted(set(names)) for names in by_numbers.values()]
    return [", ".join(f"`{name}`" for name in names) for names in found if len(names) > 1]


def nulls(regime: str, pairs: Mapping[str, list[Pair]], rows: Sequence[Row]) -> list[str]:
    """The recipes that failed, ended lower or were not decided, and those that ended higher, with
    their cost.
    """
    found = numbers.compared(pairs, "pass@1")
    verdicts = {name: found[name].verdict for name in pairs}
    done = {(r["words"], r["seed"]) for r in rows if not r["error"]}  # some of them at a second try
    lines = [f"- {regime}: `{r['words']}` seed {r['seed']} failed: {r['error']}"
             for r in rows if r["error"] and (r["words"], r["seed"]) not in done]  # fmt: skip
    few = f"fewer than {FEWEST_SEEDS} seeds, so nothing is decided against"
    for verdict, told in (("lower", "below"), ("", few)):
        names = ", ".join(f"`{name}`" for name, each in verdicts.items() if each == verdict)
        lines += [f"- {regime}, {told} `grpo`: {names}"] if names else []
    lines += _undecided(regime, [found[n] for n, v in verdicts.items() if v == "not decided"])
    if equal := _repeated(pairs):
        why = "equal numbers in every run, so their difference is not at work here"
        lines.append(f"- {regime}, {why}: {'; '.join(equal)}")
    for name in (name for name, each in verdicts.items() if each == "higher"):
        cost = f"{_ratio(pairs[name], 'sampled')} times the tokens"
        same = f"at equal sampled tokens {_at(pairs[name], 'sampled_at')}"
        lines.append(f"- {regime}, above `grpo` at equal steps, with {cost}: `{name}`; {same}")
    return lines


def _undecided(regime: str, found: Sequence[Compared]) -> list[str]:
    """How many recipes are not decided, and what their runs could have seen."""
    gaps = [each.difference.value for each in found if each.difference]
    if not gaps:
        return []
    line = (
        f"- {regime}, undecided against `grpo`: {len(found)} recipes, with differences of "
        f"{min(gaps):+.3f} to {max(gaps):+.3f}"
    )
    known = [each.resolves for each in found if math.isfinite(each.resolves)]
    return [f"{line}; half of them resolve {np.median(known):.3f} or less" if known else line]


def audited() -> dict[str, dict[str, float]]:
    """Columns of docs/AUDIT.md by recipe; of a recipe with phases, those of the first phase."""
    found: dict[str, dict[str, float]] = {}
    for heads, rows in tables("AUDIT.md"):
        for first, cells in rows.items():
            name = re.match(r"`(\w+)`", first)
            if name and {"scale", "bias", "noise"} <= set(heads):
                found.setdefault(name[1], numbers_of(heads, cells))
    return found


def questions(
    by_regime: Mapping[str, Mapping[str, list[Pair]]], stages: Mapping[str, Sequence[str]]
) -> list[str]:
    """Rank correlations: of early and last scores, of one regime and another, and of exact bias
    and what was learnt.
    """
    lines = [
        "\n## Do early ranks pick the winners?\n",
        "Ranks here and below are of differences from `grpo`, which in `own` has each recipe's "
        f"options, and cover recipes with {numbers.FEWEST_RANKED} seeds or more, at least "
        f"{numbers.FEWEST_RECIPES} of them. Early and last scores come from the same runs, so a "
        "lucky seed counts in both.\n",
        *_table("regime", "after 25% of the steps", "SharpeRatio@5", "after 50%", "SharpeRatio@5",
                "best difference of the five"),
    ]  # fmt: skip
    for regime, pairs in by_regime.items():
        cells, best = [], math.nan
        for share in (0.25, 0.5):
            early, last = numbers.early_and_last(pairs, share)
            if (found := numbers.spearman(early, last)) is not None:
                top = sharpe_ratio_at_k(early, last, 0.0, 5)
                cells, best = [*cells, str(found), f"{top.sharpe_ratio:.2f}"], top.best
        lines += [f"| {' | '.join([regime, *cells, f'{best:+.3f}'])} |"] if cells else []
    lines.append("\n## Are ranks stable between regimes?\n")
    lines.append(
        "A regime beside itself compares the ranks of its even seeds with those of its odd ones: "
        "they differ by chance alone. Each half has one to three seeds of a recipe, of `tiny` "
        "five; two regimes are compared with all seeds, which leaves less to chance.\n"
    )
    gains = {regime: numbers.gains(pairs) for regime, pairs in by_regime.items()}
    named = [regime for regime, found in gains.items() if len(found) >= numbers.FEWEST_RECIPES]
    lines += _table("", *named)
    for one in named:
        found = [_between(by_regime, gains, one, other) for other in named]
        lines.append(f"| {' | '.join([one, *found])} |")
    return [*lines, *_by_audit(gains, stages)]


def _table(*heads: str) -> list[str]:
    return [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]


def _between(
    by_regime: Mapping[str, Mapping[str, list[Pair]]],
    gains: Mapping[str, Mapping[str, float]],
    one: str,
    other: str,
) -> str:
    both = sorted(gains[one].keys() & gains[other].keys())
    found = numbers.spearman([gains[one][n] for n in both], [gains[other][n] for n in both])
    if one == other:
        found = numbers.spearman(*numbers.halves(by_regime[one]))
    return "-" if found is None else str(found)


def _by_audit(
    gains: Mapping[str, Mapping[str, float]], stages: Mapping[str, Sequence[str]]
) -> list[str]:
    """Rank correlations of what was learnt with columns of the audit, by regime and stage."""
    exact, lines, apart, count = audited(), list[str](), list[str](), 0
    for regime, learnt in gains.items():
        audited_here = [name for name in learnt if name in exact]
        groups = {"all": audited_here}
        for stage in sorted({stage for name in audited_here for stage in stages.get(name, ())}):
            of = [name for name in audited_here if stage in stages.get(name, ())]
            groups |= {stage: of} if len(of) < len(audited_here) else {}
        for group, members in groups.items():
            cells = []
            for column in AUDITED:
                names = [name for name in members if column in exact[name]]
                found = numbers.spearman(
                    [exact[n][column] for n in names], [learnt[n] for n in names]
                )
                cells.append("-" if found is None else str(found))
                count += found is not None
                if found is not None and found.low * found.high > 0:
                    apart.append(f"{regime}, {group}, {column} ({found.value:+.2f})")
            if set(cells) != {"-"}:
                lines.append(f"| {' | '.join([regime, group, *cells])} |")
    return [
        "\n## Does exact bias or noise predict what is learnt?\n",
        f"Of {count} rank correlations with columns of the [audit](AUDIT.md), {len(apart)} have an "
        f"interval without 0, where chance alone gives about {count / 20:.0f}: "
        f"{'; '.join(apart) or 'none'}. No interval is corrected for their number. A row is of the "
        "recipes that differ from their parent at a stage; *four* is the bias with four updates on "
        "the same answers, *price* the change of entropy per unit of success gained.\n",
        *_table("regime", "recipes", *AUDITED),
        *lines,
    ]


def left_out(rows: Sequence[Row]) -> list[str]:
    """How many recipes the regimes leave out for a reason, and which."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault((row["regime"], row["why"].replace("|", "/")), []).append(row["recipe"])
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (regime, why), names in found.items():
        merged.setdefault((why, tuple(names)), []).append(regime)
    lines = ["\n## Left out\n", "| regimes | why | recipes |", "| --- | --- | --- |"]
    lines += [
        f"| {', '.join(regimes)} | {why} | {len(names)}: {', '.join(f'`{n}`' for n in names)} |"
        for (why, names), regimes in merged.items()
    ]
    return lines if rows else []


def page(known: Known | None = None) -> str:
    """The page's text."""
    stages = (known or Known.make()).changed
    rows = {regime: read_rows(ROWS / f"{regime}.csv") for regime in REGIMES}
    found = {name: numbers.paired(of, name not in OWN) for name, of in rows.items()}
    by_regime = {regime: pairs for regime, pairs in found.items() if pairs}
    lines = ["\n## What failed, what shows nothing, and what does\n"]
    for regime, of in rows.items():
        if of:
            lines += nulls(regime, by_regime.get(regime, {}), of)
    none = [f"`{regime}`" for regime in rows if regime not in by_regime]
    lines += [f"- Not compared yet: {', '.join(none)}"] if none else []
    for regime, pairs in by_regime.items():
        hours = sum(float(row["seconds"] or 0) for row in rows[regime]) / 3600
        told = f"{len(rows[regime])} runs, which trained for {hours:.2f} hours on one thread."
        lines += [f"\n## {regime}\n", f"{REGIMES[regime]}. {told}\n",
                  "<!-- sortable -->\n",
                  f"| {' | '.join(HEAD)} |", "| --- " * len(HEAD) + "|"]  # fmt: skip
        lines += lines_of(pairs, stages)
        lines += [] if regime in OWN else equal_updates(pairs, rows[regime])
    judged = {
        regime: {n: of for n, of in pairs.items() if len(of) >= numbers.FEWEST_RANKED}
        for regime, pairs in by_regime.items()
    }
    lines += questions(judged, stages)
    lines += left_out(read_rows(ROWS / "left_out.csv"))
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
