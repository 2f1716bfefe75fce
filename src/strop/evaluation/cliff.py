"""How near a reward is to a cliff, where a small change of the reward moves the best policy far.

The best policy jumps where several answers share the largest reward, and moves little where
entropy is rewarded. Source: arXiv 2507.20150 (propositions 2.1 to 2.5, 4.5).
"""

import numpy as np
from numpy.typing import ArrayLike

from strop.evaluation.samples import ROUNDING, Floats, Ints
from strop.support.errors import UserError


def tied_top(prompt_A: Ints, score_A: Floats, num_prompts: int) -> Floats:
    """1 for each prompt whose largest score is shared by several of its distinct answers, else 0.

    prompt_A, score_A: [A] prompt and mean score of each distinct answer -> [P]. A prompt without
    answers gets 0.
    """
    best_P = np.full(num_prompts, -np.inf)
    np.maximum.at(best_P, prompt_A, score_A)
    at_top_A = score_A >= best_P[prompt_A] - ROUNDING  # means of equal scores differ by rounding
    return (np.bincount(prompt_A[at_top_A], minlength=num_prompts) > 1).astype(np.float64)


def reweighted_distance(
    reward_B: ArrayLike, other_B: ArrayLike, prompt_B: ArrayLike, alpha: float
) -> Floats:
    """Distance between the best policies of two rewards on the answers sampled for each prompt.

        pi_r(i) = exp(r_i / alpha) / sum_j exp(r_j / alpha) over a prompt's samples;
        TV = 1/2 sum_i |pi_reward(i) - pi_other(i)|

    alpha: the reward of one nat of entropy; samples stand for the policy that drew
    them. [P], prompts in rising order. A bound is `distance_bound`. Raises UserError for alpha 0.
    """
    reward, other = np.asarray(reward_B, dtype=np.float64), np.asarray(other_B, dtype=np.float64)
    ids, prompt = np.unique(np.asarray(prompt_B), return_inverse=True)
    _positive(alpha)
    apart = np.abs(_soft(reward, prompt, len(ids), alpha) - _soft(other, prompt, len(ids), alpha))
    return np.asarray(np.bincount(prompt, weights=apart / 2, minlength=len(ids)), dtype=np.float64)


def distance_bound(largest_change: float, alpha: float, horizon: float = 1.0) -> float:
    """largest_change * horizon / (2 alpha): no reward change of that size moves policies farther.

    horizon: 1 / (1 - gamma), or the number of rewarded steps (1: one reward an answer).
    """
    _positive(alpha)
    return largest_change * horizon / (2 * alpha)


def _positive(alpha: float) -> None:
    if not alpha > 0:
        raise UserError(f"alpha is {alpha}: without a weight of entropy there is no bound")


def _soft(reward_B: Floats, prompt_B: Ints, num: int, alpha: float) -> Floats:
    """Softmax [B] of rewards / alpha over each prompt's samples."""
    best_P = np.full(num, -np.inf)
    np.maximum.at(best_P, prompt_B, reward_B)
    weight_B = np.exp((reward_B - best_P[prompt_B]) / alpha)
    total_P = np.bincount(prompt_B, weights=weight_B, minlength=num)
    return np.asarray(weight_B / total_P[prompt_B], dtype=np.float64)
