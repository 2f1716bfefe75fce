"""What most recipes share: the stages around the advantage and the loss."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use, replace
from strop.parts.advantage.baseline.keep_made_advantage import KeepMadeAdvantage
from strop.parts.loss.average.average_by_constant_length import AverageByConstantLength
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.parts.loss.average.average_per_prompt import AveragePerPrompt
from strop.parts.loss.average.average_per_sequence import AveragePerSequence
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.parts.reward.note_reward import NoteReward
from strop.parts.reward.score_with_verifiers import ScoreWithVerifiers
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError, nearest

# Parameters of grpo by what they set: a recipe that replaces it inherits grpo without them.
ESTIMATOR = ("eps", "std", "normalize_std", "singleton")
CLIP = ("clip_low", "clip_high")

AVERAGES: dict[str, Any] = {
    "token-mean": AverageOverTokens(),
    "token-sum": AverageByConstantLength(length=1, per_rollout=False),
    "seq-mean-token-mean": AveragePerSequence(),
    "seq-mean": AveragePerSequence(),
    "seq-mean-token-sum": AverageByConstantLength(length=1),
    "seq-mean-token-sum-norm": AverageByConstantLength(),
    "token-sum-norm": AverageByConstantLength(per_rollout=False),
    "prompt-mean": AveragePerPrompt(),
}


def average(aggregation: str, length: int = 0) -> Use:
    """The part behind an aggregation's usual name. Raises UserError for an unknown name.

    `length` is the constant of those that end in "-norm"; 0: the run's longest answer.
    """
    if not isinstance(aggregation, str) or aggregation not in AVERAGES:
        hint = nearest(str(aggregation), AVERAGES) or f"; there are {', '.join(AVERAGES)}"
        raise UserError(f"no aggregation {aggregation!r}{hint}")
    part = AVERAGES[aggregation]
    if length and not aggregation.endswith("-norm"):
        raise UserError(f"aggregation {aggregation!r} has no length: leave it 0")
    return Use(replace(part, length=length) if length else part)


def check_choice(recipe: str, known: Iterable[str], **given: str) -> None:
    """Raise UserError where a parameter of the recipe is none of the known words."""
    words = tuple(known)
    for name, value in given.items():
        if value not in words:
            said = f"{value!r}{nearest(str(value), words)}"
            raise UserError(f"{recipe}.{name} must be one of {', '.join(words)}: {said}")


def around(
    num_prompts: int = 32, num_rollouts: int = 16, num_minibatches: int = 1
) -> dict[str, Any]:
    """Sampling, rollout, reward and plan of a plain step, on-policy with one mini-batch."""
    return {
        "sampling": (Use(DrawInShuffledOrder(num_prompts, num_rollouts)),),
        "rollout": Use(SampleIndependently()),
        "reward": (Use(ScoreWithVerifiers()),),
        "plan": Use(SplitIntoMinibatches(num_minibatches=num_minibatches)),
    }


def drawn_by(sampler: Any) -> tuple[Use, ...]:
    """The sampler in place of the usual one; with its label the fields keep their usual paths."""
    return (Use(sampler, label="draw_in_shuffled_order"),)


def kl_terms(beta: float, aggregation: str) -> tuple[Term, ...]:
    """The KL penalty towards the reference policy; no term where beta is 0."""
    if beta == 0:
        return ()
    return (Term("kl", Use(PenaliseKlToReference()), average(aggregation), coef=beta),)


def entropy_terms(coef: float) -> tuple[Term, ...]:
    """A bonus on the mean entropy of all tokens; no term where coef is 0."""
    if coef == 0:
        return ()
    return (Term("entropy", Use(RewardEntropy()), average("token-mean"), coef=coef),)


def replaying(algorithm: Algorithm, replay: Any) -> Algorithm:
    """The algorithm with a store of rollouts and the advantages that they were made with: these are
    computed with the rewards, so that the replay sees them and they come back with the rollouts.
    """
    *compared, spread = algorithm.advantage
    made = (Use(use.part, (("advantage_B", "made_advantage_B"),)) for use in compared)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, Use(NoteReward()), *made),
        curation=(*algorithm.curation, Use(replay)),
        advantage=(*compared, Use(KeepMadeAdvantage()), spread),
    )


def with_policy(algorithm: Algorithm, **slots: Any) -> Algorithm:
    """The algorithm with slots of its policy term replaced: objective, ratio, average, ..."""
    return with_term(algorithm, "policy", **slots)


def with_term(algorithm: Algorithm, name: str, **slots: Any) -> Algorithm:
    """The algorithm with slots of the term `name` replaced, where there is one."""
    terms = tuple(
        dataclasses.replace(term, **slots) if term.name == name else term
        for term in algorithm.terms
    )
    return dataclasses.replace(algorithm, terms=terms)
