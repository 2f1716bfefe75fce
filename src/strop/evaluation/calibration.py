"""Statistics of a model's confidence against its correctness.

Each is a function of how often every prompt counts, `counts_RP` (one row per bootstrap resample,
all ones for the estimate itself), which returns one number per row.
"""

from collections.abc import Callable

import numpy as np

from strop.evaluation.samples import Bools, Floats, Ints

Statistic = Callable[[Floats], Floats]  # counts_RP [R, P] -> [R]
BINS = 10  # of the calibration error


def auc(confidence_B: Floats, right_B: Bools, prompt_B: Ints) -> Statistic:
    """Chance that a right rollout is more confident than a wrong one, over all rollouts together.

        AUC = (1 / (R W)) sum_{i right, j wrong} [conf_i > conf_j] + 0.5 [conf_i = conf_j]

    confidence_B: [B] anything ordered; prompt_B: [B] row of each rollout's prompt in `counts_RP`.
    NaN where no rollout is right or none is wrong. Source: the Mann-Whitney statistic, Hanley and
    McNeil, Radiology 143 (1982), 29-36.
    """
    order = np.argsort(confidence_B, kind="stable")
    _, first_G = np.unique(confidence_B[order], return_index=True)
    prompt, right = prompt_B[order], right_B[order]

    def statistic(counts_RP: Floats) -> Floats:
        if len(prompt) == 0:
            return np.full(len(counts_RP), np.nan)
        weight_RB = counts_RP[:, prompt]
        right_RG = np.add.reduceat(weight_RB * right, first_G, axis=1)
        wrong_RG = np.add.reduceat(weight_RB * ~right, first_G, axis=1)
        below_RG = np.cumsum(wrong_RG, axis=1) - 0.5 * wrong_RG
        pairs_R = right_RG.sum(axis=1) * wrong_RG.sum(axis=1)
        return _divide((right_RG * below_RG).sum(axis=1), pairs_R)

    return statistic


def expected_calibration_error(probability_B: Floats, right_B: Bools, prompt_B: Ints) -> Statistic:
    """Mean distance between stated probability and share of right rollouts, over equal-width bins.

        ECE = sum_b (n_b / N) | right share of b - mean probability of b |

    probability_B: [B] in [0, 1]; bin b holds [b / BINS, (b + 1) / BINS), the last also 1.
    Source: arXiv 1706.04599, eq. 3 (there the bins are open below and closed above).
    """
    bin_B = np.minimum((probability_B * BINS).astype(np.int64), BINS - 1)

    def statistic(counts_RP: Floats) -> Floats:
        num_prompts = counts_RP.shape[1]
        gap_Pb = np.zeros((num_prompts, BINS))
        np.add.at(gap_Pb, (prompt_B, bin_B), right_B - probability_B)
        size_P = np.bincount(prompt_B, minlength=num_prompts).astype(float)
        return _divide(np.abs(counts_RP @ gap_Pb).sum(axis=1), counts_RP @ size_P)

    return statistic


def answer_entropy(prompt_A: Ints, count_A: Ints, num_prompts: int) -> tuple[Floats, Floats]:
    """Entropy over answers, whatever words lead to them: H [P], 0 without an answer, and p [A].

        p_a = n_a / sum_a n_a;  H = -sum_a p_a log p_a, nats;  exp(H) effective answers

    prompt_A, count_A: [A] prompt and number of votes of each distinct answer. With n votes H is
    biased low by about (answers - 1) / (2 n). Source: arXiv 2503.11650 (entropy over clusters).
    """
    votes_P = np.bincount(prompt_A, weights=count_A, minlength=num_prompts)
    share_A = count_A / votes_P[prompt_A]
    nats_A = -share_A * np.log(share_A)
    entropy_P = np.bincount(prompt_A, weights=nats_A, minlength=num_prompts)
    return np.asarray(entropy_P, dtype=np.float64), share_A


def share(top_P: Floats, bottom_P: Floats) -> Statistic:
    """Ratio of two sums over prompts: sum_p w_p top_p / sum_p w_p bottom_p; NaN for 0 / 0."""
    return lambda counts_RP: _divide(counts_RP @ top_P, counts_RP @ bottom_P)


def mean_over_prompts(value_P: Floats) -> Statistic:
    """Mean in which every prompt counts once, however many samples it has."""
    return share(value_P, np.ones(len(value_P)))


def _divide(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0)
