"""What `strop doctor` would say of a run after it, said while it goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.diagnosis.finding import Finding
from strop.diagnosis.run import MISMATCH, RunFiles, cut_off, loss, mismatch, unscored
from strop.diagnosis.signal import groups
from strop.support.errors import RunStopped

# A step of a few hard prompts may show any of this by chance; five in a row hardly do.
STEPS = 5

Metrics = Mapping[str, Any]


def _no_reward(line: Metrics) -> bool:
    return line.get("rewards/frac_unscored") == 1.0


def _no_signal(line: Metrics) -> bool:
    """Equal rewards in every group, and a method that makes nothing of them."""
    return line.get("frac_reward_zero_std") == 1.0 and line.get("advantage/abs_mean") == 0.0


def _no_update(line: Metrics) -> bool:
    return line.get("groups/frac_updates_empty") == 1.0 and not _no_reward(line)


def _no_end(line: Metrics) -> bool:
    return line.get("completions/clipped_ratio") == 1.0


def _mismatch(line: Metrics) -> bool:
    """Sampler and trainer differ, though the answers are drawn with the weights of the step."""
    gap = line.get("sampling/sampling_logp_difference/mean") or 0.0
    return gap > MISMATCH and not line.get("sampling/age_steps")


# What may be so of all of a step, and the question of the doctor that it answers.
KINDS: tuple[tuple[Callable[[Metrics], bool], Callable[[RunFiles], Finding]], ...] = (
    (_no_reward, unscored),
    (_no_signal, groups),
    (_no_update, loss),
    (_no_end, cut_off),
    (_mismatch, mismatch),
)


@dataclass
class Watch:
    """Sees every step's metrics; a kind of trouble that lasts for STEPS steps is told once."""

    lines: list[dict[str, Any]] = field(default_factory=list)  # the newest, at most STEPS
    told: set[int] = field(default_factory=set)  # kinds
    scored: bool = False  # a step of the run had a reward

    def begin(self, before: Sequence[Metrics]) -> None:
        """The steps that a resumed run has done already."""
        self.scored = any(line["step"] > 0 and not _no_reward(line) for line in before)

    def step(self, run: Any, metrics: Metrics) -> list[Finding]:
        """What is new. Raises RunStopped where no reward was ever given."""
        failures, line = run.world.services.grading.failures, {**metrics, "step": run.done}
        dropped = metrics.get("data/rollouts_kept") == 0.0
        if dropped and len(failures) >= metrics["data/rollouts_sampled"]:
            line["rewards/frac_unscored"] = 1.0  # a share of the kept ones, and none was kept
        self.lines = [*self.lines, line][-STEPS:]
        self.scored = self.scored or not _no_reward(line)
        files = RunFiles(self.lines, run.config.model_dump(include={"algorithm", "phases"}), [])
        if not self.scored and (len(self.lines) == STEPS or run.finished):
            raise RunStopped(_nothing_scored(unscored(files), failures, len(self.lines)))
        if len(self.lines) < STEPS:
            return []
        found = [
            (place, question(files))
            for place, (is_so, question) in enumerate(KINDS)
            if place not in self.told and all(map(is_so, self.lines))
        ]
        self.told |= {place for place, _ in found}
        return [finding for _, finding in found if finding.status == "problem"]


def _nothing_scored(finding: Finding, failures: list[Any], num_steps: int) -> str:
    steps = "the first step" if num_steps == 1 else f"the first {num_steps} steps"
    first = f" The first failure ({failures[0].kind}): {failures[0].message}." if failures else ""
    advice = finding.advice[:1].upper() + finding.advice[1:]
    return f"no answer got a reward in {steps}, so nothing is learnt.{first} {advice}"
