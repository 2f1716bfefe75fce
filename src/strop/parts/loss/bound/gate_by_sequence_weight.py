"""Let an answer's push fade as the probability of the whole answer moves."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.support.errors import UserError

MOST_NATS, LEAST_NATS = 20.0, -18.420680743952367  # the latter: log 1e-8


@dataclass(frozen=True)
class GateBySequenceWeight:
    """Answers count most while they are about as likely as when they were drawn.

        objective_t = sg[exp(l + k W - l exp(W))] * A_t * logp_t
        W = clamp(sum_{s in rollout of t} log_ratio_s + sum_s log w_s, log 1e-8, 20)
        (k, l) = good where A_t >= 0, else bad; the weight is 1 at W = 0

    w is the engine's weight min(exp(logp_old - logp_behavior), engine_cap) of a token, 1 where it
    is void or engine_cap is 0; log w_s too is held between log 1e-8 and 20. It stands inside the
    gate, so no correction is applied beside it.

    Reads: log_ratio_T, logp_T, advantage_T [T] float, mask_T [T] bool, rollout_T [T] int,
    num_rollouts int; logp_old_T, logp_behavior_T [T] float with engine_cap.
    Writes: objective_T [T] float.
    Source: arXiv 2602.10693; code huggingface/trl:trl/trainer/grpo_trainer.py (vespo).
    Differs from the source: no. W is a sum over tokens, so long answers leave the gate fast.
    Nearest part: bound_ratio_softly, which gates each token.
    Edges: advantage 0 -> objective 0; no finite weight -> 0; no policy token -> W 0.
    """

    scope: ClassVar[str] = "rollout"
    # k and l where the advantage is not negative. Default: released code (TRL).
    good: tuple[float, float] = (2.0, 3.0)
    # k and l where it is negative. Default: released code (TRL).
    bad: tuple[float, float] = (3.0, 2.0)
    # Largest engine weight of a token, a ratio of at least 1; 0: it is left out. Default: ours.
    engine_cap: float = 0.0

    def __post_init__(self) -> None:
        require(self, "engine_cap", low=0.0)
        if len(self.good) != 2 or len(self.bad) != 2:
            raise UserError("gate_by_sequence_weight.good and .bad must be two numbers, k and l")

    @property
    def facts(self) -> frozenset[str]:
        """With engine weights inside, none may be applied outside."""
        own = frozenset({"silent_at_zero_advantage"})
        return own | {"contains_behavior_ratio"} if self.engine_cap else own

    def __call__(
        self,
        log_ratio_T: Tensor,
        logp_T: Tensor,
        advantage_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
        logp_old_T: Tensor | None = None,
        logp_behavior_T: Tensor | None = None,
    ) -> Result:
        moved_T = log_ratio_T.detach()
        if self.engine_cap:
            if self.engine_cap < 1:  # the weight 1 of a void token would be cut too
                raise UserError(
                    "gate_by_sequence_weight.engine_cap must be at least 1, or 0 for none, it is "
                    f"{self.engine_cap}"
                )
            if logp_old_T is None or logp_behavior_T is None:
                raise UserError(
                    "gate_by_sequence_weight.engine_cap needs logp_old_T and logp_behavior_T"
                )
            gap_T = (logp_old_T - logp_behavior_T).detach().nan_to_num(nan=0.0)
            capped_T = gap_T.exp().clamp(max=self.engine_cap).log()
            moved_T = moved_T + capped_T.clamp(LEAST_NATS, MOST_NATS)
        sum_B = segments.total(moved_T, rollout_T, num_rollouts, mask_T).clamp(
            LEAST_NATS, MOST_NATS
        )
        sum_T = sum_B[rollout_T]
        weight_T = torch.where(advantage_T >= 0, _gate(sum_T, self.good), _gate(sum_T, self.bad))
        metrics = {"vespo/weight_mean": weight_T}
        return Result(weight_T * advantage_T * logp_T, metrics=metrics)


def _gate(sum_T: Tensor, shape: tuple[float, float]) -> Tensor:
    """exp(l + k W - l exp(W)) [T], 0 where it is not finite."""
    k, rate = shape
    weight_T = (rate + k * sum_T - rate * sum_T.exp()).exp()
    return torch.where(weight_T.isfinite(), weight_T, 0)
