"""Samples a model on a set of prompts and scores the samples; for a training run, as metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from strop.batch import segments
from strop.batch.batch import Batch
from strop.data.prompts import Prompt
from strop.engines.asynchronous import asynchronous
from strop.evaluation.preferences import given_answer_metrics
from strop.evaluation.samples import Estimate, Floats, Samples
from strop.evaluation.summary import as_json, by_prompt, summarise
from strop.method import part as parts
from strop.method.engine_needs import STATISTIC_OF
from strop.method.part import Draw, Use
from strop.parts.reward.weigh_measures import last_measures
from strop.parts.rollout import substitutes
from strop.parts.rollout.base import named, roll_out
from strop.support.errors import UserError
from strop.support.loading import attribute
from strop.training.services.run import RunGrading, RunServices


@dataclass(frozen=True)
class Evaluated:
    """The numbers of an evaluation and the rollouts that they are computed from."""

    estimates: dict[str, Estimate]
    batch: Batch
    num_left_out: int  # prompts with fewer scored answers than the largest k
    training_reward: Estimate | None = None  # of the same answers, where another judge scored them
    why_empty: str = ""  # why there are no numbers
    num_unscored: int = 0  # answers without a score, where there are no numbers
    by_prompt: dict[str, Floats] = field(default_factory=dict)  # scores of each prompt, [P]


def evaluate(
    prompts: Sequence[Prompt],
    rollout: Use,
    engine: Any,
    services: RunServices,
    *,
    num_samples: int,
    ks: Sequence[int],
    seed: int,
    judge: RunGrading | None = None,
) -> Evaluated:
    """Draw `num_samples` answers per prompt with the strategy `rollout` and summarise them.

    judge: scores the answers in place of the run's rewards, whose mean is then only reported.

    A strategy whose answers depend on each other is replaced by its plain form.
    The strategy's generator is seeded by `seed` alone, so two checkpoints see the same draws.
    A prompt with fewer than k scored answers is left out of pass@k. If no prompt has enough,
    there are no numbers, and `why_empty` says why. Raises UserError where nothing scores answers.
    """
    grading = services.grading if judge is None else judge
    if not grading.can_grade:
        raise UserError("nothing scores these answers: give a reward function with --reward NAME")
    rollout = Use(substitutes.scoring(rollout.part))
    draws = tuple(Draw(prompt.uid, num_samples) for prompt in prompts)
    rng = torch.Generator().manual_seed(seed)
    handed = {"draws": draws, "engine": asynchronous(engine), "rng": rng}
    strategy = parts.call(rollout, None, services=services, **handed).value
    batch = roll_out(named(rollout, strategy), engine, services).batch
    graded = grading.grade(batch)
    scored_B = graded.scored_B.numpy()
    group_B = batch["group_B"].numpy()
    scored_P = np.bincount(group_B, scored_B, minlength=batch.size("P"))
    if scored_P.max(initial=0) < max(ks):
        failed = [*services.sampling.failures, *(each.message for each in grading.failures)]
        why = f": {failed[-1]}" if failed else ""
        return Evaluated(
            {}, batch, len(scored_P), why_empty=f"too few answers could be scored{why}",
            num_unscored=int((~scored_B).sum()),
        )  # fmt: skip
    samples = _samples(batch, services, graded, scored_B, engine.capabilities)
    estimates = summarise(samples, ks, seed=seed)
    reward = None if judge is None else _mean_reward(batch, services, samples, seed)
    each = by_prompt(samples, ks, len(prompts))
    return Evaluated(estimates, batch, int((scored_P < max(ks)).sum()), reward, by_prompt=each)


def _mean_reward(
    batch: Batch, services: RunServices, samples: Samples, seed: int
) -> Estimate | None:
    """The mean reward of these answers by the run's own rewards; None where they score none."""
    if not services.grading.can_grade:
        return None
    graded = services.grading.grade(batch)
    if not bool(graded.scored_B.any()):
        return None
    score_B, scored_B = graded.outcome_B.double().numpy(), graded.scored_B.numpy()
    rewarded = replace(
        samples, score_B=score_B, scored_B=scored_B, answer_B=None, confidence_B=None,
        entropy_B=None, measured={},
    )  # fmt: skip
    return summarise(rewarded, (1,), seed=seed)["mean@n"]


def _samples(
    batch: Batch,
    services: RunServices,
    graded: Any,
    scored_B: np.ndarray,
    statistics: frozenset[str],
) -> Samples:
    """The columns to summarise; statistics: those that the engine gave."""
    _, texts = services.texts.decoded(batch)
    length_B, place = batch["length_B"].double(), (batch["rollout_T"], batch.size("B"))
    means = {  # NaN without a token
        name: segments.total(batch[name].double(), *place, batch["mask_T"]) / length_B
        for name, statistic in STATISTIC_OF.items()
        if statistic in statistics
    }
    confidence_B = means.get("logp_sampler_T")
    entropy_B = means.get("entropy_behavior_T")
    answer = attribute(services.task.answer) if services.task.answer else None
    return Samples(
        prompt_B=batch["group_B"].numpy(),
        score_B=graded.outcome_B.double().numpy(),
        length_B=batch["length_B"].numpy(),
        truncated_B=batch["truncated_B"].numpy(),
        answer_B=None if answer is None else [answer(text) for text in texts],
        confidence_B=None if confidence_B is None else confidence_B.clamp(max=0.0).numpy(),
        entropy_B=None if entropy_B is None else entropy_B.numpy(),
        scored_B=scored_B,
        measured=_measured(batch, services),
    )


def _measured(batch: Batch, services: RunServices) -> dict[str, Floats]:
    """An environment's measurements of each rollout's last action, [B]; NaN where it has none."""
    logged = services.log.logged.get("turns", {})
    each_B = [last_measures(logged.get(uid, ())) for uid in batch["rollout_uid_B"].tolist()]
    names = dict.fromkeys(name for each in each_B for name in each)
    return {name: np.array([each.get(name, np.nan) for each in each_B]) for name in names}


REWARD = "training_reward"  # by the run's rewards, of answers that another judge scored
KEYS = (
    REWARD,
    "mean@n",
    "num_unscored",
    "pass@",
    "maj@",
    "auc",
    "entropy",
    "distinct@",
    "completions/mean_length",
)


def validator(num_samples: int, ks: tuple[int, ...], seed: int) -> Any:
    """An evaluator for the loop: the same prompts and the same draws every time."""

    def run(world: Any, algorithm: Any, split: str, prompts: Any) -> dict[str, float]:
        given = given_answer_metrics(world.services, algorithm.rollout.part, prompts)
        found = {f"eval/{split}/{name}": value for name, value in given.items()}
        services = world.services
        answers_only = bool(given) and services.episodes.are_played  # which its reward cannot score
        if not answers_only and (split in services.judges or services.grading.can_grade):
            found |= sampled(world, algorithm, split, prompts)
        return found

    def sampled(world: Any, algorithm: Any, split: str, prompts: Any) -> dict[str, float]:
        judge = world.services.judges.get(split)
        if judge is not None:
            judge.failures.clear()
        evaluated = evaluate(
            prompts,
            algorithm.rollout,
            world.engine,
            world.services,
            num_samples=num_samples,
            ks=ks,
            seed=seed,
            judge=judge,
        )
        if not evaluated.estimates:  # a failing verifier costs scores, but does not stop the run
            return {f"eval/{split}/num_unscored": float(evaluated.num_unscored)}
        estimates = dict(evaluated.estimates)
        if evaluated.training_reward is not None:
            estimates[REWARD] = evaluated.training_reward
        return {
            f"eval/{split}/{name}": value
            for name, value in as_json(estimates).items()
            if value is not None
            and name.startswith(KEYS)
            and not (name.startswith("num_") and "/" in name)  # counts have no interval
        }

    return run
