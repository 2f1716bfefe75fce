"""The clipped surrogate of PPO with the dual clip, without a critic."""

from strop.algorithm import Algorithm
from strop.loss.bound.clip_both_sides import ClipBothSides
from strop.part import Use
from strop.recipes._base import with_policy
from strop.recipes.reinforce_plus_plus import reinforce_plus_plus


def ppo_clip(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    # Largest ratio on negative advantages, above 1; 0: none.
    dual_clip_c: float = 3.0,
    # Discount of a token.
    gamma: float = 1.0,
    # Added to the variance of the whitening.
    whiten_eps: float = 1e-8,
    beta: float = 0.0,
    aggregation: str = "token-mean",
    num_prompts: int = 32,
    num_rollouts: int = 16,
) -> Algorithm:
    """Proximal Policy Optimization Algorithms (the loss, with the dual clip).

    arXiv 1707.06347, eq. 7; dual clip arXiv 1912.09729, eq. 5. Code: verl-project/verl.
    Parent: reinforce_plus_plus. Status: partial.

    Equation: L1 = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)); loss = mean_t of
    min(L1, -A dual_clip_c) where A < 0, else of L1.
    Differs from the parent: the dual clip.
    Differs from the paper: no critic. Advantages are whitened returns, what the paper's estimator
    gives with lambda 1 and all values 0; the loss takes any others. dual_clip_c 3 is verl's.
    Try: dual_clip_c (0: plain PPO), clip_high (0.28), plan.num_minibatches (4).
    """
    algorithm = reinforce_plus_plus(
        gamma=gamma,
        whiten_eps=whiten_eps,
        beta=beta,
        aggregation=aggregation,
        num_prompts=num_prompts,
        num_rollouts=num_rollouts,
    )
    return with_policy(algorithm, objective=Use(ClipBothSides(clip_low, clip_high, dual_clip_c)))
