"""Reports during a run what `strop doctor` would report after it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.diagnosis.finding import Finding
from strop.diagnosis.run import (
    MISMATCH,
    OUT_OF_RANGE,
    RunFiles,
    capital,
    cut_off,
    loss,
    mismatch,
    out_of_range,
    unscored,
    without_tokens,
)
from strop.diagnosis.signal import groups
from strop.diagnosis.validation import parted
from strop.support.errors import RunStopped
from strop.support.exits import FAILED, Exit, causes

# A step of a few hard prompts may show any of this by chance; five in a row hardly do.
STEPS = 5
UNSCORED_STEPS = 20  # number of steps over which reward.max_unscored_share is taken

Metrics = Mapping[str, Any]


def _no_reward(line: Metrics) -> bool:
    return line.get("rewards/frac_unscored") == 1.0


def _no_token(line: Metrics) -> bool:
    return line.get("completions/max_length") == 0.0


def _all_failed(line: Metrics) -> bool:
    """Every answer or episode has failed, and all have the same reward."""
    failed = (share for cause, share in causes(line).items() if FAILED <= cause < Exit.PENDING)
    return sum(failed) > 1 - 1e-9 and not line.get("reward_std")


def _no_signal(line: Metrics) -> bool:
    """Rewards are equal in every group, and the method's advantages are all 0."""
    return line.get("frac_reward_zero_std") == 1.0 and line.get("advantage/abs_mean") == 0.0


def _no_update(line: Metrics) -> bool:
    """Selection leaves no gradient, or curation no rollout: then some plans make no update."""
    empty = line.get("groups/frac_updates_empty") == 1.0 or line.get("data/rollouts_kept") == 0.0
    return empty and not _no_reward(line)


def _no_end(line: Metrics) -> bool:
    return line.get("completions/clipped_ratio") == 1.0


def _mismatch(line: Metrics) -> bool:
    """Sampler and trainer differ, though the answers are drawn with the weights of the step."""
    gap = line.get("sampling/sampling_logp_difference/mean") or 0.0
    return gap > MISMATCH and not line.get("sampling/age_steps")


def _validates(line: Metrics) -> bool:
    return any(name.startswith("eval/") for name in line)


def _problem(finding: Finding | None) -> bool:
    return finding is not None and finding.status == "problem"


def _out_of_range(line: Metrics) -> bool:
    """An episode's rewards lie outside the range that its environment declares."""
    return bool(line.get(OUT_OF_RANGE))


# What may be true of a step, the question of the doctor about it, and for how many steps in a row
# it has to be true.
KINDS: tuple[tuple[Callable[[Metrics], bool], Callable[[RunFiles], Finding], int], ...] = (
    (_no_reward, unscored, STEPS),
    (_no_signal, groups, STEPS),
    (_no_update, loss, STEPS),
    (_no_end, cut_off, STEPS),
    (_mismatch, mismatch, STEPS),
    (_out_of_range, out_of_range, 1),
)


@dataclass
class Watch:
    """Reads every step's metrics; reports each kind of problem once, when it has lasted for as many
    steps as `KINDS` says.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)  # the newest, of this process
    reported: set[int] = field(default_factory=set)  # kinds
    sampled: bool = False  # whether any step had a token of the policy
    scored: bool = False  # whether any step had a reward, other than of failed episodes only
    why: str = ""  # the message of the first episode that failed
    exits: list[dict[Exit, float]] = field(default_factory=list)  # of the newest steps
    validations: list[Metrics] = field(default_factory=list)
    parted: bool = False  # whether it has reported that reward and evaluation part

    def begin(self, before: Sequence[Metrics], reward: Any) -> None:
        """Take in the steps that a resumed run has already done. reward: the run's settings of it.

        Steps that have stopped the run for answers without a score do not count again.
        """
        done = [line for line in before if line["step"] > 0]
        self.sampled = any(not _no_token(line) for line in done)
        self.scored = any(not (_no_reward(line) or _all_failed(line)) for line in done)
        self.exits = [causes(line) for line in done[-UNSCORED_STEPS:]]
        if self._too_many_unscored(reward):
            self.exits = []
        self.validations = [line for line in before if _validates(line)]
        self.parted = _problem(parted(self.validations))

    def step(self, run: Any, metrics: Metrics) -> list[Finding]:
        """The new findings. Raises RunStopped when no reward was ever given or every episode has
        failed, and when failures leave too many answers without a score.
        """
        services, line = run.world.services, {**metrics, "step": run.done}
        failures, episodes = services.grading.failures, services.log.logged.get("exit_why", {})
        dropped = metrics.get("data/rollouts_kept") == 0.0
        if dropped and len(failures) >= metrics["data/rollouts_sampled"]:
            line["rewards/frac_unscored"] = 1.0  # it is a share of the kept ones: none was kept
        self.lines = [*self.lines, line][-STEPS:]
        self.why = self.why or next(iter(episodes.values()), "")
        failed = bool(episodes) and _all_failed(line)
        self.scored = self.scored or not (failed or _no_reward(line))
        self.sampled = self.sampled or not _no_token(line)
        settings = run.config.model_dump(include={"reward"})
        files = RunFiles(self.lines, settings, [])
        judged = len(self.lines) == STEPS or run.finished
        if not self.scored and judged:
            raise RunStopped(self._nothing_scored(unscored(files), failures))
        if not self.sampled and judged and (fault := without_tokens(files)):
            raise RunStopped(f"in {self._first_steps()} {fault[0]}. {capital(fault[1])}")
        self._check_unscored(run.config.reward, metrics, failures)
        apart = self._reward_apart_from_evaluation(line)
        found = [
            (place, question(files))
            for place, (is_so, question, steps) in enumerate(KINDS)
            if place not in self.reported
            and len(self.lines) >= steps
            and all(map(is_so, self.lines[-steps:]))
        ]
        self.reported |= {place for place, _ in found}
        return apart + [finding for _, finding in found if finding.status == "problem"]

    def _nothing_scored(self, finding: Finding, failures: Sequence[Any]) -> str:
        """Why the run is useless, with the first failure."""
        steps, first = self._first_steps(), ""
        if self.why:
            return (
                f"every episode failed in {steps}, so nothing is learned. The first failure: "
                f"{self.why}. Fix it and resume, or restart"
            )
        if failures:
            first = f" The first failure ({failures[0].cause.label}): {failures[0].message}."
        advice = capital(finding.advice)
        return f"no answer got a reward in {steps}, so nothing is learned.{first} {advice}"

    def _first_steps(self) -> str:
        return "the first step" if len(self.lines) == 1 else f"the first {len(self.lines)} steps"

    def _reward_apart_from_evaluation(self, line: Metrics) -> list[Finding]:
        """The finding that reward and evaluation part, at the first validation that shows it."""
        if self.parted or not _validates(line):
            return []
        self.validations.append(line)
        found = parted(self.validations)
        self.parted = _problem(found)
        return [found] if found is not None and self.parted else []

    def _too_many_unscored(self, reward: Any) -> Counter[Exit]:
        """By cause, the shares of answers that failures left unscored, summed over the newest
        steps; empty where these are few steps or answers.
        """
        total: Counter[Exit] = Counter()
        for found in self.exits:
            total.update({c: n for c, n in found.items() if c.leaves_unscored(reward.on_failure)})
        share = sum(total.values()) / UNSCORED_STEPS
        enough = len(self.exits) == UNSCORED_STEPS and share > reward.max_unscored_share
        return total if enough else Counter()

    def _check_unscored(self, reward: Any, metrics: Metrics, failures: Sequence[Any]) -> None:
        """Raise RunStopped where failures left too many answers of the newest steps unscored."""
        self.exits = [*self.exits, causes(metrics)][-UNSCORED_STEPS:]
        total = self._too_many_unscored(reward)
        if not total:
            return
        share = sum(total.values()) / UNSCORED_STEPS
        by_cause = ", ".join(
            f"{cause.label} ({each / UNSCORED_STEPS:.0%})" for cause, each in total.most_common()
        )
        newest = [f for f in failures if f.cause is total.most_common(1)[0][0]]
        last = f" The newest says: {newest[-1].message}." if newest else ""
        raise RunStopped(
            f"{share:.0%} of {UNSCORED_STEPS} steps' answers have no score: {by_cause}.{last} "
            "Fix it and resume; reward.max_unscored_share says how many may have none"
        )
