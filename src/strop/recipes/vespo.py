"""The policy gradient with a soft gate on the probability of the whole answer."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.gate_by_sequence_weight import GateBySequenceWeight
from strop.recipes._base import CLIP, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(
    parameters={
        "vespo_k_pos": "k_pos", "vespo_lambda_pos": "lambda_pos",
        "vespo_k_neg": "k_neg", "vespo_lambda_neg": "lambda_neg",
    }
)  # fmt: skip
@inherits(grpo, without=CLIP, aggregation="token-mean", num_minibatches=4)
def vespo(
    *,
    # Growth of a good answer's gate with its weight.
    k_pos: float = 2.0,
    # Decay of a good answer's gate with its weight.
    lambda_pos: float = 3.0,
    # Growth of a bad answer's gate with its weight.
    k_neg: float = 3.0,
    # Decay of a bad answer's gate with its weight.
    lambda_neg: float = 2.0,
    # Largest engine weight of a token that enters the gate; 0: none enters.
    engine_cap: float = 0.0,
    **parent: Any,
) -> Algorithm:
    """VESPO: Variational Sequence-Level Soft Policy Optimization.

    arXiv 2602.10693. Code: huggingface/trl (loss_type vespo). Parent: grpo. Status: exact.

    Family: ratios.
    In short: soft gate per whole answer.
    Choose it when: old answers or many updates should be down-weighted smoothly, by whole answers;
    log-ratios add up over tokens, so answers should be short.
    Equation: loss = -1/N sum_t phi(W) A logp, phi = exp(l + k W - l exp(W)) detached, W =
    clamp(sum_t (logp - logp_old), log 1e-8, 20); (k, l) is the good pair where A >= 0.
    Differs from the parent: no clip: a gate on the whole answer that is 1 at W = 0 and falls to
    both sides, sooner for good ones that became likelier; four updates a step.
    Differs once: `plan.num_minibatches=4` (vespo/weight_mean != 1).
    Differs from the paper: its "staleness N" is the number of updates, 4 to 64 (here 4); its run
    with an engine of its own is `training.max_staleness=1`. W is a sum, so the gate closes fast on
    long answers.
    Try: engine_cap (3) with engine.staleness, num_minibatches, lambda_neg.
    """
    gate = GateBySequenceWeight((k_pos, lambda_pos), (k_neg, lambda_neg), engine_cap)
    return with_policy(grpo(**parent), objective=Use(gate))
