"""Leave-one-out advantages per turn, without rollouts on which engine and trainer disagree."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.selection.drop_mismatched_rollouts import DropMismatchedRollouts
from strop.recipes._inherit import inherits
from strop.recipes.trloo import trloo


@inherits(trloo)
def mrs(
    *,
    # Smallest ratio of the trainer's to the engine's probability, geometric mean over a rollout.
    lo: float = 0.999,
    # Largest such ratio.
    hi: float = 1.001,
    # A turn with a token whose ratio is below this is left out; 0: none.
    veto: float = 1e-4,
    **parent: Any,
) -> Algorithm:
    """Dr. Kernel: Reinforcement Learning Done Right for Triton Kernel Generations (rejection).

    arXiv 2602.05885. Code: hkust-nlp/KernelGYM. Parent: trloo. Status: exact.

    Family: staleness.
    In short: rejects mismatched rollouts.
    Choose it when: engine and trainer disagree strongly about some episodes (low precision), which
    are better dropped than reweighted.
    Equation: w_i = exp(mean_t (logp_old - logp_sampler)) over all policy tokens of the rollout;
    rollout i is trained on if lo <= w_i <= hi, and of it the turns without a token whose ratio
    is below veto.
    Differs from the parent: rollouts on which engine and trainer disagree are left out of loss and
    averages.
    Differs once: `data.task=corridor 'data.task_config={size: 2, style: compact}'
    engine.staleness=2 training.lr=1e-6` (mismatch/dropped_fraction > 0).
    Differs from the paper: engine and trainer are two programs there, here one unless
    `engine.kind=vllm`: then nothing is dropped without `engine.staleness`. Advantages are those of
    all rollouts, dropped ones included.
    Try: lo and hi (0.99, 1.01 where the engine runs at lower precision), veto (0: none).
    """
    return dataclasses.replace(
        trloo(**parent), selection=(Use(DropMismatchedRollouts(lo, hi, veto)),)
    )
