"""What a step on sampled answers does to the probability of right ones that were not sampled.

One token, logits for parameters, one step of size eta on -(1/N) sum_j (R_j - mean R) p_j with
rewards +-1 or others. Source: arXiv 2510.01180 (the change of the right mass; its simulator).
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from strop.evaluation.samples import Floats
from strop.support.errors import UserError


class MassChange(NamedTuple):
    """Change of the right answers' probability for eta 1: what was sampled, and what was not."""

    sampled: float
    unsampled: float

    @property
    def whole(self) -> float:
        return self.sampled + self.unsampled


def mass_change(
    probability_V: ArrayLike,
    right_V: ArrayLike,
    sampled_V: ArrayLike,
    num: int,
    rewards: tuple[float, float] = (1.0, -1.0),
) -> MassChange:
    """First-order change of sum p over the right tokens, in a step on `num` samples.

        dQ = 1/N [(R_c - S) Q_neg A2 + (S - R_w) Q_pos B2] + 1/N S (Q_pos U_neg2 - Q_neg U_pos2)
        S = R_c P_pos + R_w P_neg, the sampled mass of right and wrong tokens; A2, B2, U_pos2,
        U_neg2: sums of p^2 over sampled right, sampled wrong, unsampled right, unsampled wrong ones

    rewards: of a right token and of a wrong one. The second part may be below 0; it vanishes as all
    mass is sampled. Raises UserError for probabilities that do not add up to 1, or no sample.
    """
    p, right, seen = (np.asarray(x) for x in (probability_V, right_V, sampled_V))
    p, right, seen = p.astype(np.float64), right.astype(bool), seen.astype(bool)
    if abs(float(p.sum()) - 1) > 1e-6 or num < 1 or not seen.any():
        raise UserError("probabilities must add up to 1, with at least one sample")
    high, low = rewards
    square = p**2
    q_pos, q_neg = float(p[right].sum()), float(p[~right].sum())
    moved = high * float(p[right & seen].sum()) + low * float(p[~right & seen].sum())
    sampled = (high - moved) * q_neg * float(square[right & seen].sum())
    sampled += (moved - low) * q_pos * float(square[~right & seen].sum())
    unsampled = q_pos * float(square[~right & ~seen].sum())
    unsampled -= q_neg * float(square[right & ~seen].sum())
    return MassChange(sampled / num, moved * unsampled / num)


def unsampled_weight(probability: ArrayLike, num: int) -> Floats:
    """p^2 (1 - p)^N: what a token of that probability adds to U in expectation."""
    p = np.asarray(probability, dtype=np.float64)
    return np.asarray(p**2 * (1 - p) ** num)


class Simulated(NamedTuple):
    """Of each step: right mass; in the end: share of right tokens that rose, and the worst fall."""

    right_mass: list[float]
    share_risen: float
    worst_fall: float


def simulate(
    num: int,
    steps: int = 1000,
    vocabulary: int = 128_000,
    num_right: int = 10_000,
    lr: float = 1e-3,
    seed: int = 0,
) -> Simulated:
    """The paper's simulator: logits 0, right ones 3, one wrong anchor 5; AdamW; rewards +-1."""
    rng = torch.Generator().manual_seed(seed)
    logits_V = torch.zeros(vocabulary)
    logits_V[:num_right], logits_V[-1] = 3.0, 5.0
    reward_V = torch.where(torch.arange(vocabulary) < num_right, 1.0, -1.0)
    start_V = logits_V.softmax(0)
    logits_V.requires_grad_()
    optimiser = torch.optim.AdamW([logits_V], lr=lr)
    masses = []
    for _ in range(steps):
        p_V = logits_V.softmax(0)
        drawn = torch.multinomial(p_V.detach(), num, replacement=True, generator=rng)
        centred = reward_V[drawn] - reward_V[drawn].mean()
        optimiser.zero_grad()
        (-(centred * p_V[drawn]).mean()).backward()
        optimiser.step()
        masses.append(float(logits_V.detach().softmax(0)[:num_right].sum()))
    change_V = (logits_V.detach().softmax(0) - start_V)[:num_right]
    risen = float((change_V > 0).double().mean())
    return Simulated(masses, risen, float((-change_V).max().clamp(min=0)))
