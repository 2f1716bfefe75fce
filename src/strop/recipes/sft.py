"""Supervised fine-tuning on given answers."""

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.parts.reward.reward_preferred import RewardPreferred
from strop.parts.rollout.read_answers import ReadAnswers
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.recipes._base import average


def sft(*, aggregation: str = "token-mean", num_prompts: int = 32) -> Algorithm:
    """Training language models to follow instructions with human feedback (supervised step).

    arXiv 2203.02155, sec. 3.5. Code: none released (TRL, verl carry it). Parent: none.
    Status: exact.

    Family: demonstrations.
    In short: imitates given answers.
    Choose it when: you have good answers and no reward, or a model that must learn the format
    before it can earn any reward.
    Equation: loss = -mean_t logp_t over the tokens of the column `completion`, its end included.
    Differs from the parent: it is the root of the methods that learn from given answers.
    Differs from the paper: no. Prompt tokens have no loss; `rollout.temperature` divides the
    logits, which is 1 unless set.
    Try: num_prompts, aggregation ("seq-mean-token-mean" gives short answers more weight).
    """
    return Algorithm(
        sampling=(Use(DrawInShuffledOrder(num_prompts, num_rollouts=1)),),
        rollout=Use(ReadAnswers()),
        reward=(Use(RewardPreferred()),),
        advantage=(Use(SpreadEvenly()),),
        terms=(Term("policy", Use(FollowLogLikelihood()), average(aggregation)),),
        plan=Use(SplitIntoMinibatches()),
    )
