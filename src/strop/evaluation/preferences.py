"""How a policy ranks given answers: likelihood of demonstrations, order of preferred pairs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from strop.batch import segments
from strop.evaluation.samples import Floats
from strop.method.part import Draw
from strop.method.services import Services
from strop.support.errors import UserError

BETAS = (0.01, 0.1, 1.0, 5.0, 10.0)
CERTAIN = 1 - 1e-3  # replaces a share of raters of 1, whose log-odds are infinite


def ranking_accuracy(
    logp: Any, *, lengths: Any = None, tie_margin: float = 0.0, strict: bool = False
) -> float:
    """Share of prompts whose answers the policy ranks in the preferred order.

        mean over prompts of 1[logp_1 >= logp_2 >= ...]

    logp: [N, n], summed log-probabilities of n answers, the preferred one first. lengths: [N, n]
    tokens; given, means over tokens are compared. tie_margin: a lead below it, in nats, counts as
    a tie. Ties are right unless `strict`. Source: arXiv 2405.19534, definition 2.2.
    """
    scores = np.asarray(logp, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise UserError(f"logp must be [N, n] with two answers or more, it is {scores.shape}")
    if lengths is not None:
        scores = scores / np.asarray(lengths, dtype=np.float64)
    lead = scores[:, :-1] - scores[:, 1:]
    right = lead > tie_margin if strict else lead >= -tie_margin
    return float(right.all(1).mean()) if len(scores) else math.nan


def idealised_ranking_accuracy(logp_ref: Any, *, alpha: Any = 1.0, beta: float = 0.1) -> float:
    """Share of pairs that the optimum of DPO's objective would rank right.

        mean of 1[(logp_ref_chosen - logp_ref_rejected) + log(alpha / (1 - alpha)) / beta > 0]

    logp_ref: [N, 2], summed, the preferred answer first. alpha: share of raters who prefer it, a
    number or [N]; 1 counts as 0.999. Source: arXiv 2405.19534, theorem 3.1, corollary 3.3.
    """
    scores = _pairs(logp_ref)
    share = np.clip(np.asarray(alpha, dtype=np.float64), 1 - CERTAIN, CERTAIN)
    if beta <= 0:
        raise UserError(f"beta must be above 0, it is {beta}")
    odds = np.log(share) - np.log1p(-share)
    return float((scores[:, 0] - scores[:, 1] + odds / beta > 0).mean())


def idealised_range(logp_ref: Any, *, alpha: Any = 1.0) -> tuple[float, float, float]:
    """Least, median and greatest idealised accuracy over beta of 0.01, 0.1, 1, 5 and 10."""
    found = [idealised_ranking_accuracy(logp_ref, alpha=alpha, beta=beta) for beta in BETAS]
    return min(found), float(np.median(found)), max(found)


def alignment_gap(logp: Any, logp_ref: Any, *, alpha: Any = 1.0, beta: float = 0.1) -> float:
    """Idealised minus observed ranking accuracy of pairs [N, 2]."""
    return idealised_ranking_accuracy(logp_ref, alpha=alpha, beta=beta) - ranking_accuracy(logp)


def hardest_loss(logp_ref: Any, *, beta: float = 0.1) -> np.ndarray:
    """The DPO loss [N] at or below which a pair is ranked right.

        -log sigmoid(beta c), c = logp_ref_rejected - logp_ref_chosen

    logp_ref: [N, 2], the preferred answer first. Source: arXiv 2405.19534, theorem 4.1.
    """
    scores = _pairs(logp_ref)
    return np.logaddexp(0.0, -beta * (scores[:, 1] - scores[:, 0]))


def flips(before: Any, after: Any) -> dict[str, float]:
    """Shares of pairs by whether they were ranked right before and after training.

    before, after: logp [N, 2]. Keys: stayed_right, became_right, became_wrong, stayed_wrong.
    """
    was, now = (pairs[:, 0] >= pairs[:, 1] for pairs in map(_pairs, (before, after)))
    return {
        "stayed_right": float((was & now).mean()),
        "became_right": float((~was & now).mean()),
        "became_wrong": float((was & ~now).mean()),
        "stayed_wrong": float((~was & ~now).mean()),
    }


def _pairs(logp: Any) -> Floats:
    """The scores of pairs [N, 2]. Raises UserError for others."""
    scores = np.asarray(logp, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != 2:
        raise UserError(f"log-probabilities must be those of pairs [N, 2], they are {scores.shape}")
    return scores


def given_answer_metrics(
    services: Services, rollout: Any, prompts: Sequence[Any]
) -> dict[str, float]:
    """Scores of the current policy on the answers that `rollout` reads; empty where it samples.

    nll: nats a token of the first, preferred answers. For pairs also ranking_accuracy (sums),
    ranking_accuracy_per_token (means) and, with a reference, reward_accuracy: the share whose
    log-ratio to the reference is larger for the preferred answer.
    """
    columns = rollout.given
    if not columns or rollout.needs_traces:
        return {}
    draws = tuple(Draw(prompt.uid, len(columns)) for prompt in prompts)
    batch = rollout.read(draws, services.texts, services.sampling)
    mask_T, num = batch["mask_T"], batch.size("B")

    def sums(policy: str) -> torch.Tensor:
        logp_T = services.scoring.score(batch, policy, ("logp_T",))["logp_T"].cpu()
        total_B = segments.total(logp_T, batch["rollout_T"], num, mask_T)
        return total_B.view(-1, len(columns)).double()

    logp, length = sums("current"), batch["length_B"].view(-1, len(columns)).double()
    found = {"nll": -float(logp[:, 0].sum() / length[:, 0].sum())}
    if len(columns) > 1:
        found["ranking_accuracy"] = ranking_accuracy(logp)
        found["ranking_accuracy_per_token"] = ranking_accuracy(logp, lengths=length)
        if "ref" in services.scoring.policies:
            ratio = logp - sums("ref")
            found["reward_accuracy"] = ranking_accuracy(ratio, strict=True)
    return found
