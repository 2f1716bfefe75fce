"""The numbers of an evaluation by name, with percentile-bootstrap intervals over prompts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from strop.evaluation.at_k import distinct_at_k, majority_at_k, pass_at_k
from strop.evaluation.calibration import (
    Statistic,
    answer_entropy,
    auc,
    expected_calibration_error,
    mean_over_prompts,
    share,
)
from strop.evaluation.cliff import tied_top
from strop.evaluation.samples import COVERAGE, Estimate, Floats, Ints, Samples
from strop.support.errors import UserError

CHUNK = 4_000_000  # numbers held at once


def bootstrap(
    statistics: Mapping[str, Statistic],
    num_prompts: int,
    *,
    num_resamples: int = 2000,
    seed: int = 0,
    num_rollouts: int = 0,
) -> dict[str, Estimate]:
    """Each statistic with its 95% percentile interval when prompts are resampled with replacement.

        low, high = quantiles 0.025 and 0.975 of statistic(counts_r)
        counts_r ~ Multinomial(P; 1/P, ..., 1/P)

    Prompts are resampled and never rollouts, because rollouts of a prompt are not independent
    evidence about the set. Resamples on which a statistic is undefined (NaN) are left out of its
    quantiles; with one prompt there is no interval (NaN). `num_rollouts` only sizes the chunks.
    Raises UserError for fewer than 100 resamples or no prompt.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), sec. 13.3.
    """
    if num_resamples < 100 or num_prompts < 1:
        raise UserError(
            f"a bootstrap needs at least 100 resamples (got {num_resamples}) and a prompt (got "
            f"{num_prompts})."
        )
    ones_1P = np.ones((1, num_prompts))
    values = {name: float(of(ones_1P)[0]) for name, of in statistics.items()}
    if num_prompts == 1:
        return {name: Estimate(value, np.nan, np.nan, 1) for name, value in values.items()}
    drawn: dict[str, list[Floats]] = {name: [] for name in statistics}
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK // max(num_prompts, num_rollouts))
    for start in range(0, num_resamples, chunk):
        rows = min(chunk, num_resamples - start)
        counts_RP = rng.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=rows)
        for name, of in statistics.items():
            drawn[name].append(of(counts_RP.astype(np.float64)))
    return {
        name: Estimate(value, *_quantiles(np.concatenate(drawn[name])), num_prompts)
        for name, value in values.items()
    }


def _quantiles(value_R: Floats) -> tuple[float, float]:
    defined = value_R[~np.isnan(value_R)]
    if len(defined) == 0:
        return np.nan, np.nan
    low, high = np.quantile(defined, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def summarise(
    samples: Samples,
    ks: Sequence[int] = (1,),
    *,
    num_resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Every number that the samples allow; keys in this order, `k` once for each of `ks`.

    - `mean@n`: mean score of a prompt's n samples (its expectation for any k), mean over prompts
    - `pass@k`, `maj@k`, `distinct@k`: see `at_k.py`, mean over prompts; the last two with answers
    - `distinct_fraction`: distinct answers / n, mean over prompts; with answers
    - `tied_top`: prompts whose best score several distinct answers share / prompts; with answers
    - `answer_entropy`, `effective_answers`: H and exp(H) of a prompt's answers, see
      `calibration.py`, mean over the prompts with an answer; `answer_entropy_auc`,
      `answer_share_auc`: chance that a right answer is of a prompt with less H, or has a larger
      share of its prompt's votes, than a wrong one; of answers that can be read
    - `auc`, `ece`: see `calibration.py`; with confidences (ECE on exp(confidence))
    - `entropy`: mean over all tokens, nats; with entropies
    - `measures/NAME`: mean over the rollouts of which the environment measured it
    - `completions/mean_length`, `completions/clipped_ratio` (share cut off by the token limit):
      over rollouts; `completions/min_length`, `completions/max_length`: of the sample
    - `num_rollouts`, `num_unscored`, `num_unscored_prompts`: counts

    Unscored rollouts count only in the last two counts; a prompt without any scored rollout is left
    out and counted. A rollout whose confidence or entropy is NaN is left out of that statistic
    alone. Seeded: the same samples give the same numbers.
    A mean at k is over the prompts with k scored samples. Raises UserError for a k that no prompt
    has, and when no rollout was scored.
    """
    kept = samples.only_scored()
    if len(kept.prompt_B) == 0:
        raise UserError("no rollout was scored, so there is nothing to evaluate.")
    groups = _Groups.of(kept)
    for k in ks:
        _check_k(k, samples, groups)
    statistics: dict[str, Statistic] = {
        "mean@n": mean_over_prompts(groups.sum(kept.score_B) / groups.n_P)
    }
    for k in ks:
        right_P = groups.sum(kept.right_B).astype(np.int64)
        statistics[f"pass@{k}"] = groups.enough(pass_at_k(np.maximum(groups.n_P, k), right_P, k), k)
    statistics |= _answer_statistics(kept, groups, ks, seed)
    statistics |= _token_statistics(kept, groups)
    estimates = bootstrap(
        statistics,
        len(groups.n_P),
        num_resamples=num_resamples,
        seed=seed,
        num_rollouts=len(kept.prompt_B),
    )
    return _of_enough(estimates, groups.n_P) | _descriptions(samples, kept, len(groups.n_P))


def _of_enough(estimates: Mapping[str, Estimate], n_P: Ints) -> dict[str, Estimate]:
    """The estimates, those at k with the number of prompts that have k samples; one alone gives no
    interval.
    """
    found = dict(estimates)
    for name, of in estimates.items():
        kind, _, k = name.partition("@")
        if kind in ("pass", "maj", "distinct"):
            num = int((n_P >= int(k)).sum())
            limits = (np.nan, np.nan) if num == 1 else (of.low, of.high)
            found[name] = Estimate(of.value, *limits, num)
    return found


def as_json(estimates: Mapping[str, Estimate]) -> dict[str, float | None]:
    """Flat form: `pass@1`, `pass@1/low`, `pass@1/high`; None where undefined."""
    return {
        f"{name}{ending}": value if math.isfinite(value) else None
        for name, (*values, _) in estimates.items()
        for ending, value in zip(("", "/low", "/high"), values, strict=True)
    }


def by_prompt(samples: Samples, ks: Sequence[int], num_prompts: int) -> dict[str, Floats]:
    """`mean@n` and `pass@k` of each of the prompts 0 .. P-1, float [P]; NaN where too few of its
    samples were scored.
    """
    kept = samples.only_scored()
    n_P = np.bincount(kept.prompt_B, minlength=num_prompts)
    right_P = np.bincount(kept.prompt_B, kept.right_B, num_prompts).astype(np.int64)
    sum_P = np.bincount(kept.prompt_B, kept.score_B, num_prompts)
    found = {"mean@n": np.where(n_P > 0, sum_P / np.maximum(n_P, 1), np.nan)}
    for k in ks:
        found[f"pass@{k}"] = np.where(n_P >= k, pass_at_k(np.maximum(n_P, k), right_P, k), np.nan)
    return found


@dataclass(frozen=True)
class _Groups:
    """Prompts numbered 0 .. P-1."""

    prompt_B: Ints
    id_P: Ints
    n_P: Ints

    @classmethod
    def of(cls, samples: Samples) -> "_Groups":
        id_P, prompt_B, n_P = np.unique(samples.prompt_B, return_inverse=True, return_counts=True)
        return cls(prompt_B.astype(np.int64), id_P, n_P.astype(np.int64))

    def enough(self, value_P: Floats, k: int) -> Statistic:
        """Mean of a statistic over the prompts that have at least k samples."""
        has_P = (self.n_P >= k).astype(np.float64)
        return share(value_P * has_P, has_P)

    def sum(self, value_B: np.ndarray) -> Floats:
        return np.asarray(
            np.bincount(self.prompt_B, weights=value_B, minlength=len(self.n_P)), dtype=np.float64
        )


def _check_k(k: int, samples: Samples, groups: _Groups) -> None:
    if k < 1:
        raise UserError(f"k = {k} makes no sense; give a k of at least 1.")
    most = int(groups.n_P.argmax())
    n, prompt = int(groups.n_P[most]), groups.id_P[most]
    if k > n:
        failed = int((~samples.scored & (samples.prompt_B == prompt)).sum())
        raise UserError(
            f"k = {k} needs {k} scored samples of a prompt, and prompt {prompt} has n = {n} "
            f"({failed} more were not scored); ask for k <= {n} or draw more samples."
        )


def _answer_statistics(
    kept: Samples, groups: _Groups, ks: Sequence[int], seed: int
) -> dict[str, Statistic]:
    """maj@k, distinct@k and the distinct fraction; empty without answers."""
    if kept.answer_B is None:
        return {}
    given_B = np.array([answer is not None for answer in kept.answer_B], dtype=bool)
    texts = np.array([answer for answer in kept.answer_B if answer is not None], dtype=object)
    _, text_B = np.unique(texts, return_inverse=True)
    pairs = np.stack([groups.prompt_B[given_B], text_B.astype(np.int64)], axis=1)
    answer_A, answer_B, count_A = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    answer_B = answer_B.reshape(-1)
    right_A = np.bincount(answer_B, weights=kept.right_B[given_B], minlength=len(count_A)) / count_A
    prompt_A = answer_A[:, 0]
    ends = np.searchsorted(prompt_A, np.arange(len(groups.n_P) + 1))
    rows = [slice(a, b) for a, b in pairwise(ends)]
    statistics: dict[str, Statistic] = {}
    for k in ks:
        rng = np.random.default_rng((seed, k))
        majority_P = [
            majority_at_k(count_A[row], right_A[row], int(n), k, rng) if n >= k else 0.0
            for row, n in zip(rows, groups.n_P, strict=True)
        ]
        statistics[f"maj@{k}"] = groups.enough(np.array(majority_P), k)
        distinct_P = distinct_at_k(prompt_A, count_A, np.maximum(groups.n_P, k), k)
        statistics[f"distinct@{k}"] = groups.enough(distinct_P, k)
    statistics["distinct_fraction"] = mean_over_prompts(np.diff(ends) / groups.n_P)
    given_score = np.bincount(answer_B, weights=kept.score_B[given_B], minlength=len(count_A))
    tied_P = tied_top(prompt_A, given_score / count_A, len(groups.n_P))
    statistics["tied_top"] = mean_over_prompts(tied_P)
    entropy_P, share_A = answer_entropy(prompt_A, count_A, len(groups.n_P))
    has_P = (np.diff(ends) > 0).astype(np.float64)
    statistics["answer_entropy"] = share(entropy_P, has_P)
    statistics["effective_answers"] = share(np.exp(entropy_P) * has_P, has_P)
    prompt, right = groups.prompt_B[given_B], kept.right_B[given_B]
    doubt_P = entropy_P.round(9)  # so that rounding decides between no prompts with equal votes
    statistics["answer_entropy_auc"] = auc(-doubt_P[prompt], right, prompt)
    statistics["answer_share_auc"] = auc(share_A[answer_B], right, prompt)
    return statistics


def _token_statistics(kept: Samples, groups: _Groups) -> dict[str, Statistic]:
    """Confidence against correctness, entropy and lengths."""
    statistics: dict[str, Statistic] = {}
    if kept.confidence_B is not None:
        known_B = ~np.isnan(kept.confidence_B)
        confidence, right = kept.confidence_B[known_B], kept.right_B[known_B]
        prompt = groups.prompt_B[known_B]
        statistics["auc"] = auc(confidence, right, prompt)
        probability = np.minimum(np.exp(confidence), 1.0)
        statistics["ece"] = expected_calibration_error(probability, right, prompt)
    if kept.entropy_B is not None:
        known_B = ~np.isnan(kept.entropy_B)
        tokens_B = np.where(known_B, kept.length_B, 0)
        nats_B = np.where(known_B, kept.entropy_B, 0.0) * tokens_B
        statistics["entropy"] = share(groups.sum(nats_B), groups.sum(tokens_B))
    n_P = groups.n_P.astype(np.float64)
    statistics["completions/mean_length"] = share(groups.sum(kept.length_B), n_P)
    statistics["completions/clipped_ratio"] = share(groups.sum(kept.truncated_B), n_P)
    for name, value_B in kept.measured.items():
        known_B = ~np.isnan(value_B)
        summed_P = groups.sum(np.where(known_B, value_B, 0.0))
        statistics[f"measures/{name}"] = share(summed_P, groups.sum(known_B))
    return statistics


def _descriptions(samples: Samples, kept: Samples, num_prompts: int) -> dict[str, Estimate]:
    """Numbers of this sample, with nothing inferred: low = high = value."""
    num_seen_prompts = len(np.unique(samples.prompt_B))
    numbers = {
        "completions/min_length": kept.length_B.min(),
        "completions/max_length": kept.length_B.max(),
        "num_rollouts": len(kept.prompt_B),
        "num_unscored": len(samples.prompt_B) - len(kept.prompt_B),
        "num_unscored_prompts": num_seen_prompts - num_prompts,
    }
    return {
        name: Estimate(float(value), float(value), float(value), num_prompts)
        for name, value in numbers.items()
    }
