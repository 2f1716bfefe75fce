"""Answers the questions that users ask most about a run, from the run's own files.

It reads `metrics.jsonl`, `config.toml` and `rollouts/*.parquet`, and writes nothing. The limits
below are ours: they mark where a number is worth a look, not where training is bound to fail.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from strop.diagnosis.finding import Finding, mean
from strop.diagnosis.signal import entropy, groups, learns_from_equal, movement
from strop.diagnosis.terms import conflict
from strop.diagnosis.validation import parted
from strop.method.part import EARLIER
from strop.parts.curation._store import STORED
from strop.support.errors import UserError
from strop.support.exits import FAILED, OUTSIDE, Exit, causes
from strop.support.files import toml_of
from strop.tracking.metrics_file import NAME, lines_of
from strop.training.record import ending, likeness
from strop.training.record.lock import in_use

# Columns of the stored rollouts, with the types of their values (any size of float).
COLUMNS = {
    "step": "int64", "uid": "int64", "draw": "int64", "prompt": "string", "reward": "double",
    "advantage": "double", "scored": "bool",
}  # fmt: skip
ZERO_LOSS = 1e-6  # a loss closer to 0 counts as 0
ZERO_GRADIENT = 1e-12
MISMATCH = 0.05  # nats a token: every ratio is off by about 5%
MISMATCH_NOTE = 0.01
DEAD = "router/frac_dead_experts"
DEAD_NOTE = 0.1  # share of the experts that lost their tokens over the run
CUT_OFF, CUT_OFF_NOTE = 0.2, 0.05  # share of answers
CUT = (Exit.ENVIRONMENT_CRASH, Exit.START_FAILED)  # such an episode counts as cut off too
UNSCORED = 0.05  # share of rollouts
OUT_OF_RANGE = "episode/out_of_range_fraction"
OWN_REWARDS = {"agent", "environment", "recorded"}  # rewards that come with the rollouts
SHOWN = 5  # steps shown of a list
SKIP = 1.5  # factor over the usual amount of data for each rollout, above which data was skipped


@dataclass(frozen=True)
class RunFiles:
    """A run: its training lines in file order, settings and stored rollouts."""

    lines: list[dict[str, Any]]
    settings: Mapping[str, Any]
    rows: list[dict[str, Any]]
    likeness: str = ""  # the line of `training/record/likeness.py`
    apart: Mapping[str, str] = field(default_factory=dict)
    end: ending.Ending | None = None
    running: bool = False

    def series(self, name: str) -> list[float]:
        """All finite values of a metric, in the order of steps."""
        return [line[name] for line in self.lines if line.get(name) is not None]

    def late(self, name: str) -> list[float]:
        """The metric's values in the last third of the run, at least one."""
        values = self.series(name)
        return values[-max(1, len(values) // 3) :]


def examine(folder: Path) -> list[Finding]:
    """Answer all questions for the run in `folder`. Raises UserError when it is not a run."""
    run = read(folder)
    checks = (
        ended, loss, entropy, groups, movement, own_part, mismatch, order, cut_off, ends, unscored,
        finite,
    )  # fmt: skip
    found = [check(run) for check in checks]
    if run.series(DEAD):
        found.append(experts(run))
    if run.series(OUT_OF_RANGE):
        found.append(out_of_range(run))
    if run.series("conflict/cancelled"):
        found.append(conflict(run))
    validated = parted([*lines_of(folder)])
    return found if validated is None else [*found, validated]


def read(folder: Path) -> RunFiles:
    """The files of a run. Raises UserError when they are missing or cannot be read."""
    from strop.tracking.metrics_file import is_number
    from strop.tracking.rollouts_file import damaged, read_table, rollouts_files

    end = ending.read(folder)
    how = f"it stopped: {end.why}" if end is not None and end.why else (
        "it is in its first one, or was killed in it"
    )  # fmt: skip
    nothing = UserError(f"{folder} has no finished step: {how}")
    if (folder / "config.toml").is_file() and not (folder / NAME).is_file():
        raise nothing
    written = (int, float, type(None))  # a run writes numbers of these types only
    lines = [
        {k: v if is_number(v) else None for k, v in line.items() if type(v) in written}
        for line in lines_of(folder)
        if line["step"] >= 1
    ]
    if not lines:
        raise nothing  # a validation before the first step may have a line
    settings = toml_of(folder / "config.toml", "the configuration")
    rows: list[dict[str, Any]] = []
    prompts: dict[str, str] = {}  # each is stored once, though many rollouts have it
    for path in rollouts_files(folder):
        table = read_table(path, [*COLUMNS])
        kinds = {field.name: str(field.type) for field in table.schema}
        for name, kind in COLUMNS.items():
            if not kinds.get(name, "none").endswith(kind):
                raise UserError(damaged(path, f"its column {name} is not {kind}"))
        rows += (
            {**row, "prompt": prompts.setdefault(row["prompt"], row["prompt"])}
            for row in table.to_pylist()
        )
    return RunFiles(lines, settings, rows, *likeness.read(folder), end, in_use(folder))


def ended(run: RunFiles) -> Finding:
    """Whether the run did all its steps, and why not."""
    question, end = "Did the run end as planned?", run.end
    training = run.settings.get("training")
    steps = training.get("steps") if isinstance(training, dict) else None
    done = end.step if end is not None else int(max(line["step"] for line in run.lines))
    numbers = {"finished steps": done, "training.steps": steps}
    so_far = f"after step {done} of {steps}" + (f", {end.time}" if end is not None else "")
    again = "resume it with strop train --resume"
    if run.running:
        answer = f"It is running; step {done} of {steps} is done."
        return Finding(question, "ok", answer, "", numbers)
    if end is not None and end.why:
        answer = f"It stopped {so_far}: {end.why}"
        return Finding(question, "problem", answer, f"correct the cause, then {again}", numbers)
    if done == steps or (end is not None and end.finished):
        return Finding(question, "ok", f"It ended {so_far}.", "", numbers)
    if end is not None:
        return Finding(question, "note", f"It was asked to stop {so_far}.", again, numbers)
    answer = f"It recorded no end {so_far}: its process was killed, or its machine failed."
    return Finding(question, "note", answer, again, numbers)


def loss(run: RunFiles) -> Finding:
    """Whether the loss is 0, and why; a learning rate or gradient of 0 is a problem."""
    question = "Why is the loss 0?"
    losses, norms, rates = map(run.series, ("loss", "grad_norm", "learning_rate"))
    uniform = run.series("frac_reward_zero_std")
    with_gradient = run.series("groups/frac_rollouts_with_gradient")
    empty = run.series("groups/frac_updates_empty")
    numbers: dict[str, Any] = {
        name: mean(values)
        for name, values in {
            "mean |loss|": [abs(v) for v in losses], "mean grad_norm": norms,
            "mean learning_rate": rates, "mean frac_reward_zero_std": uniform,
            "mean groups/frac_rollouts_with_gradient": with_gradient,
            "mean groups/frac_updates_empty": empty,
        }.items() if values
    }  # fmt: skip
    fault = _fault(run, numbers)
    if fault is not None:
        return Finding(question, "problem", *fault, numbers)
    if not losses or not norms:
        return Finding(question, "unknown", "The metrics have no loss or no grad_norm.")
    if mean([abs(v) for v in losses]) < ZERO_LOSS:
        return Finding(
            question, "ok", f"By construction: advantages of a group sum to 0 and at the first "
            f"update every ratio is 1. The gradient is not 0 (mean norm {mean(norms):.3g}), so the "
            "model learns. Look at reward and the validation scores.", numbers=numbers,
        )  # fmt: skip
    return Finding(question, "ok", f"It is not: mean |loss| {numbers['mean |loss|']:.3g}, mean "
                   f"gradient norm {mean(norms):.3g}.", numbers=numbers)  # fmt: skip


def _fault(run: RunFiles, numbers: dict[str, Any]) -> tuple[str, str] | None:
    """Answer and advice when nothing was learned; None when something was."""
    rates, kept, norms = map(run.series, ("learning_rate", "data/rollouts_kept", "grad_norm"))
    uniform = numbers.get("mean frac_reward_zero_std", 0.0)
    failed = sum(share for cause, share in _exits(run).items() if FAILED <= cause < Exit.PENDING)
    with_gradient = numbers.get("mean groups/frac_rollouts_with_gradient", 1.0)
    if rates and max(rates) == 0:
        return "The learning rate is 0 at every step: nothing is learned.", "set training.lr"
    if uniform > 0.99 and failed > 0.99:
        return (
            "Nearly every answer or episode fails, so rewards are equal and the gradient is 0.",
            "see the question about failures below",
        )
    if silent := without_tokens(run):
        return f"{capital(silent[0])}.", silent[1]
    if uniform > 0.99 and not learns_from_equal(run):
        moved = bool(norms) and max(norms) > ZERO_GRADIENT
        rest = "only other terms of the loss move the weights" if moved else "so is the gradient"
        return (
            f"In {uniform:.0%} of the groups all rewards are equal, so advantages are 0; {rest}.",
            "see the question about groups below; a reward that is always the same teaches "
            "nothing: try it with strop doctor --data --reward",
        )
    if kept and max(kept) == 0:
        return (
            "Curation drops every rollout.",
            "data/dropped/... in metrics.jsonl says why; for groups of equal rewards see what the "
            "reward gives: strop doctor --data FILE --reward SOURCE",
        )
    if numbers.get("mean groups/frac_updates_empty", 0.0) > 0.99:
        return (
            "Selection leaves no rollout with a gradient.",
            "widen the selection (a band, a filter of cut-off answers), or raise "
            "rollout.max_tokens when all answers are cut off",
        )
    if with_gradient < 0.01:
        return (
            "No rollout that selection leaves has an advantage other than 0.",
            "see the question about groups below, and advantage/abs_mean in metrics.jsonl",
        )
    if norms and max(norms) <= ZERO_GRADIENT:
        return (
            "The gradient is 0 at every step, for a reason other than the usual ones.",
            "look at advantage/abs_mean and at terms.*.coef",
        )
    return None


def without_tokens(run: RunFiles) -> tuple[str, str] | None:
    """Answer and advice where the policy never sampled a token; None where it did, or nothing was
    sampled.
    """
    longest = run.series("completions/max_length")
    if not longest or any(longest):
        return None
    exits = _exits(run)
    ends = ", ".join(f"{cause.label} {share:.0%}" for cause, share in exits.items())
    answer = "the policy sampled no token, so nothing is learned"
    if ends:
        answer += f" (rollouts ended with: {ends})"
    if any(FAILED <= cause < Exit.PENDING for cause in exits):
        return answer, "read the column exit_why of rollouts/*.parquet: it says what failed"
    if exits.get(Exit.TOKEN_LIMIT):
        return answer, (
            "what the model is given leaves no place for an answer: make prompts shorter than its "
            "context, or take a model with a longer one"
        )
    return answer, "an agent has to call the model: docs/AGENTS.md says how it finds it"


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def mismatch(run: RunFiles) -> Finding:
    """Whether sampler and trainer give the same log-probabilities."""
    question = "Do sampler and trainer disagree?"
    name = "sampling/sampling_logp_difference/mean"
    values, late = run.series(name), run.late(name)
    if not values:
        return Finding(question, "unknown", f"The metrics have no {name}.")
    updates = mean(run.late("updates/of_policy") or [1.0])
    now, first = mean(late), values[0]
    age = mean(run.late("sampling/age_steps") or [0.0])
    numbers = {"first": first, "late": now, "max": max(values), "updates a step": updates,
               "age, steps": age}  # fmt: skip
    answer = f"{now:.3g} nats a token late in the run ({first:.3g} at first, at most "
    answer += f"{max(values):.3g}); limits: note {MISMATCH_NOTE}, problem {MISMATCH}."
    if now <= MISMATCH_NOTE:
        return Finding(question, "ok", answer, numbers=numbers)
    causes = "causes: half precision (model.dtype=float32 removes it), top_p, top_k or min_p (the "
    causes += "sampler draws from a cut distribution), an engine or model whose code differs, "
    causes += "records of other weights or of another temperature than rollout.temperature; "
    causes += "correction=weigh_by_engine_ratio weighs it out, selection=drop_mismatched_rollouts "
    causes += "drops what is far off, and the recipe rollout_correction does both"
    if any(run.late("router/frac_tokens_mismatched")):
        causes += "; tokens go to other experts: model.router_replay=R3 replays the sampler's"
    if age:
        answer += (
            f" The weights that drew the answers are {age:.2g} steps old (sampling/age_steps): "
        )
        answer += "the policy has learned since, so this alone is no mismatch."
        return Finding(question, "note", answer, "to tell, draw fresh answers for some steps, in a "
                       "new run without training.max_staleness or engine.staleness, whichever it "
                       f"has; {causes}", numbers)  # fmt: skip
    if updates > 1:
        answer += f" {updates:.3g} updates a step: from the second on, the difference includes the "
        answer += "policy's own movement, so this alone is no mismatch."
        return Finding(question, "note", answer, f"try one update a step to tell; {causes}",
                       numbers)  # fmt: skip
    return Finding(question, "problem" if now > MISMATCH else "note", answer, causes, numbers)


def experts(run: RunFiles) -> Finding:
    """Whether experts of a mixture get no tokens."""
    dead, now = run.series(DEAD), mean(run.late(DEAD))
    most = mean(run.late("router/max_load"))
    answer = f"{now:.1%} of the experts get no token late in the run ({dead[0]:.1%} at first); the "
    answer += f"busiest expert of a layer gets {most:.3g} times its share."
    numbers = {"first": dead[0], "late": now, "busiest": most}
    if now - dead[0] < DEAD_NOTE:
        return Finding("Do experts collapse?", "ok", answer, numbers=numbers)
    advice = "balance them: model.router_aux_loss_coef=0.001, or more; or lower training.lr"
    return Finding("Do experts collapse?", "problem", answer, advice, numbers)


def own_part(run: RunFiles) -> Finding:
    """Whether the method's results differ from those of its parent and of the usual methods."""
    question = "Does the method differ from its parent?"
    if run.likeness:
        advice = "use that setting, or compare with a method that differs: until then its "
        advice += "results are the other's"
        return Finding(question, "note", run.likeness, advice)
    if not run.apart:
        return Finding(question, "unknown", "The run's first steps did not tell.")
    stages = ", ".join(f"from {name} at its {stage}" for name, stage in run.apart.items())
    return Finding(question, "ok", f"Yes: {stages}.", numbers=dict(run.apart))


def order(run: RunFiles) -> Finding:
    """Whether every step and prompt was processed once, also after a resume."""
    question = "Did resuming skip or repeat data?"
    steps = [line["step"] for line in run.lines]
    found = _step_faults(steps)
    for name in ("data/epoch", "num_tokens"):
        values = [(line["step"], line[name]) for line in run.lines if line.get(name) is not None]
        falls = [step for (_, a), (step, b) in pairwise(values) if b < a]
        if falls:
            found.append(f"{name} falls at step {_some(falls)}")
    skips = _skips(run.lines)
    if skips:
        found.append(f"data/epoch jumps at step {_some(skips)}")
    repeated = _repeated(run)
    if repeated:
        found.append(f"prompts twice in one epoch: uid {_some(repeated)}")
    numbers = {"steps": len(steps), "first": steps[0], "last": steps[-1], "faults": found,
               "stored rollouts": len(run.rows)}  # fmt: skip
    if found:
        return Finding(question, "problem", "; ".join(found) + ".", "restart the run from its "
                       "config.toml, or report how it was stopped and resumed: a resumed run "
                       "has each step once and continues in the same order", numbers)  # fmt: skip
    answer = f"Steps {steps[0]} to {steps[-1]} are there once each; epoch and tokens never fall."
    if run.rows and run.series("data/epoch"):
        new = sum(map(_is_new, run.rows))
        answer += f" No prompt of the {new} stored rollouts comes twice within an epoch"
        replayed = len(run.rows) - new
        answer += f", without {replayed} of groups that earlier steps began." if replayed else "."
    return Finding(question, "ok", answer, numbers=numbers)


def _step_faults(steps: list[int]) -> list[str]:
    found = []
    twice = sorted(step for step, times in Counter(steps).items() if times > 1)
    gaps = [(low + 1, high) for low, high in pairwise(sorted({0, *steps})) if high > low + 1]
    if twice:
        found.append(f"written more than once: step {_some(twice)}")
    if gaps:
        firsts = (step for low, high in gaps for step in range(low, high))
        missing = sum(high - low for low, high in gaps)
        found.append(f"missing: step {_some([*islice(firsts, SHOWN)], missing)}")
    if not twice and steps != sorted(steps):
        found.append("the steps are not in order")
    return found


def _skips(lines: list[dict[str, Any]]) -> list[int]:
    """Steps at which the epoch advanced by far more than usual in their phase, both in the step and
    for each sampled rollout: steps refill, and schedules change the size of groups.
    """
    phases: dict[Any, list[tuple[int, float, float]]] = {}
    for before, line in pairwise(lines):
        known = all(each.get("data/epoch") is not None for each in (before, line))
        if known and line.get("data/rollouts_sampled") and line["step"] == before["step"] + 1:
            passed = line["data/epoch"] - before["data/epoch"]
            each = line["step"], passed, passed / line["data/rollouts_sampled"]
            phases.setdefault(line.get("phase"), []).append(each)
    found: list[int] = []
    for rates in (each for each in phases.values() if len(each) >= 3):
        _, passed, rate = (sorted(column)[len(rates) // 2] for column in zip(*rates, strict=True))
        if rate > 0:
            found += [n for n, p, r in rates if p > SKIP * passed and r > SKIP * rate]
    return found


def _repeated(run: RunFiles) -> list[int]:
    """Prompts that two steps of the same epoch drew, without groups that an earlier step began."""
    epoch_of, before = {}, 0.0
    for line in run.lines:
        now = line.get("data/epoch")
        if now is None:
            return []
        if now <= int(before) + 1:  # the step lies within one epoch
            epoch_of[line["step"]] = int(before)
        before = now
    seen: dict[tuple[int, int], int] = {}
    twice = set()
    for row in run.rows:
        if row["step"] in epoch_of and _is_new(row):
            key = (epoch_of[row["step"]], row["uid"])
            if seen.setdefault(key, row["step"]) != row["step"]:
                twice.add(row["uid"])
    return sorted(twice)


def _is_new(row: Mapping[str, Any]) -> bool:
    """Whether the row's group began in its own step: it is not replayed, nor did it wait."""
    stored_in, number = divmod(row["draw"], STORED)
    return stored_in in (0, row["step"]) and number // EARLIER in (0, row["step"])


def cut_off(run: RunFiles) -> Finding:
    """Whether answers are cut off at the token limit, or episodes at the turn limit."""
    question = "Are answers cut off?"
    cut = [
        max(line["completions/clipped_ratio"] - sum(causes(line).get(each, 0.0) for each in CUT), 0)
        for line in run.lines
        if line.get("completions/clipped_ratio") is not None
    ]
    if not cut:
        return Finding(question, "unknown", "The metrics have no completions/clipped_ratio.")
    share, first = mean(cut[-max(1, len(cut) // 3) :]), cut[0]
    numbers = {"first": first, "late": share}
    answer = f"{share:.1%} of the answers late in the run ({first:.1%} at first)."
    turns = mean([causes(line).get(Exit.TURN_LIMIT, 0.0) for line in run.lines])
    by_turns = turns > mean(cut) / 2
    if by_turns:
        answer += " Most of them are episodes that reached their turn limit."
    beyond, paid = run.late("bootstrap/value_mean"), run.late("reward")
    if any(beyond) and paid:
        numbers |= {"bootstrap/value_mean": mean(beyond), "reward": mean(paid)}
        answer += f" The critic values what would follow the cut at {mean(beyond):.3g}"
        answer += f" (mean reward {mean(paid):.3g})."
    status: Any = "problem" if share > CUT_OFF else "note" if share > CUT_OFF_NOTE else "ok"
    advice = "raise rollout.max_tokens, or make long answers costly (penalise_overlong_softly), or "
    if by_turns:
        advice = "raise the environment's limit of turns (max_turns in data.task_config), or "
    advice += "leave cut-off answers out of the loss (drop_truncated_rollouts)"
    if any(beyond):
        advice += "; where a cut is worth more than an end, the policy learns to be cut off: "
        advice += "bootstrap_truncated=false"
    return Finding(question, status, answer, "" if status == "ok" else advice, numbers)


def _has_functions(run: RunFiles) -> bool:
    """Whether reward functions judge answers, alone or beside the rewards of episodes."""
    names = {name for line in run.lines for name in line if name.startswith("rewards/")}
    named = {name.split("/")[1] for name in names if name.endswith("/mean")}
    given = (run.settings.get("reward") or {}).get("functions")
    played = any("episode/turns_mean" in line for line in run.lines)
    return bool(given or named - OWN_REWARDS) or not (named or played)


def unscored(run: RunFiles) -> Finding:
    """Whether reward functions fail, or, without functions, whether episodes fail."""
    functions = _has_functions(run)
    question = "Do reward functions fail?" if functions else "Do episodes fail?"
    values = run.series("rewards/frac_unscored")
    if not values:
        return Finding(question, "unknown", "The metrics have no rewards/frac_unscored.")
    failed = {
        cause: share
        for cause, share in _exits(run).items()
        if cause >= FAILED and cause is not Exit.PENDING
    }
    own = sum(share for cause, share in failed.items() if cause.is_policys)
    counts, paid = (run.settings.get("reward") or {}).get("on_failure", 0.0), ""
    answer = f"{mean(values):.2%} of the rollouts have no score (at most {max(values):.2%})."
    advice = "run strop doctor --data FILE --reward SOURCE: it shows what the function says"
    if not failed or Exit.TIMEOUT in failed:
        advice += "; raise reward.timeout_seconds when it is slow"
    if not functions:
        advice = "read the column exit_why of rollouts/*.parquet: it says what failed, and where"
    if failed:
        causes = ", ".join(f"{cause.label} {share:.2%}" for cause, share in failed.items())
        answer += f" Answers by cause: {causes}."
    elif functions and max(values) > 0:
        answer += " None of them failed: no reward applied to them (each returned None)."
    if own and counts == "unscored":
        paid = "answers that make a reward fail are left out, and the policy can learn to write "
        paid += "such answers: count them with reward.on_failure=0"
    worst = min((row["reward"] for row in run.rows if row["scored"]), default=0.0)
    if own and counts != "unscored" and counts > worst:
        paid = f"a failure counts as {counts:g} and the worst answer got {worst:g}: set "
        paid += f"reward.on_failure={worst:g}, or lower"
    some = "note" if max(values) > 0 or failed else "ok"
    status: Any = "problem" if max(mean(values), own) > UNSCORED or paid else some
    numbers = {"mean": mean(values), "max": max(values),
               **{f"exit/{cause.label}": share for cause, share in failed.items()}}  # fmt: skip
    advice = "" if status == "ok" else "; ".join(filter(None, (paid, advice)))
    return Finding(question, status, answer, advice, numbers)


def out_of_range(run: RunFiles) -> Finding:
    """How many episodes have rewards outside the range that their environment declares."""
    most = max(run.series(OUT_OF_RANGE))
    return Finding(
        "Do rewards lie in the range that the environment declares?", "problem",
        f"No: in a step up to {most:.2%} of the episodes have a sum of rewards outside "
        "`reward_range`.",
        "correct the rewards of the environment, or its reward_range",
        {f"max {OUT_OF_RANGE}": most},
    )  # fmt: skip


def _exits(run: RunFiles) -> dict[Exit, float]:
    """Each cause's share of the answers, as a mean over steps."""
    found: dict[Exit, float] = {}
    for line in run.lines:
        for cause, share in causes(line).items():
            found[cause] = found.get(cause, 0.0) + share / len(run.lines)
    return found


def ends(run: RunFiles) -> Finding:
    """How answers and episodes ended, other than by themselves."""
    question = "How do episodes and answers end?"
    found = _exits(run)
    outside = sum(share for cause, share in found.items() if OUTSIDE <= cause < Exit.REWARD_BUG)
    failed = sum(share for cause, share in found.items() if FAILED <= cause < OUTSIDE)
    answer = ", ".join(f"{cause.label} {share:.2%}" for cause, share in sorted(found.items()))
    answer = f"Beside those that finished: {answer}." if found else "All end by themselves."
    status: Any = "problem" if outside > UNSCORED else "note" if outside or failed else "ok"
    advice = "environment, server or engine fail by themselves: see their messages in the run's "
    advice += "output, and the machines that they run on"
    if Exit.ENVIRONMENT_CRASH in found:
        advice = "the environment raised an error or ended: read the column exit_why of "
        advice += "rollouts/*.parquet, which says what failed, and where"
    if not outside:
        advice = "" if status == "ok" else "see the question about failures below"
    numbers = {f"exit/{cause.label}": share for cause, share in found.items()}
    return Finding(question, status, answer, advice, numbers)


def finite(run: RunFiles) -> Finding:
    """Whether any number is not finite; metrics.jsonl has null for it."""
    question = "Is anything not finite?"
    bad: dict[str, list[int]] = {}
    for line in run.lines:
        for name, value in line.items():
            if value is None:
                bad.setdefault(name, []).append(line["step"])
    if not bad:
        return Finding(question, "ok", f"No, in none of {len(run.lines)} steps.")
    places = "; ".join(f"{name} at step {_some(steps)}" for name, steps in sorted(bad.items()))
    return Finding(question, "problem", f"Not finite: {places}.", "lower training.lr, use "
                   "model.dtype=bfloat16 or float32, and look at what your own metrics divide by",
                   {"not finite": bad})  # fmt: skip


def _some(values: list[int], num: int | None = None) -> str:
    """The first few of `num` values as text; by default `num` is the number of values."""
    more = (len(values) if num is None else num) - SHOWN
    return ", ".join(map(str, values[:SHOWN])) + (f" and {more} more" if more > 0 else "")
