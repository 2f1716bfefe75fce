"""Keep the next-token choice open."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class RewardEntropy:
    """The policy is paid for spreading its probability; a positive coefficient raises entropy.

        objective_t = entropy_t

    Reads: entropy_T [T] float.   Writes: objective_T [T] float (nats).
    Source: code only: huggingface/trl:trl/trainer/grpo_trainer.py, verl-project/verl
    workers/utils/losses.py.
    Differs from the source: no; the term's average chooses between their normalisers (TRL: always
    average_over_tokens; verl: the policy term's).
    Nearest part: penalise_full_kl_to_reference; equal gradient when the reference is uniform.
    Edges: masked tokens ignored.
    """

    scope: ClassVar[str] = "token"

    def __call__(self, entropy_T: Tensor) -> Tensor:
        return entropy_T
