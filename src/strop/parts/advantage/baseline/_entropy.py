"""The entropy of a step, which parts that weigh or drop signs compare with a target."""

from torch import Tensor

from strop.batch import segments
from strop.support.errors import UserError


def entropy_of_step(
    reader: str,
    batch_entropy: Tensor | None,
    entropy_old_T: Tensor | None,
    mask_T: Tensor,
    rollout_T: Tensor,
    scored_B: Tensor,
) -> float:
    """`batch_entropy` where given, else the mean entropy_old of the scored policy tokens; nats.

    Raises UserError where neither is given.
    """
    if batch_entropy is not None:
        return float(batch_entropy)
    if entropy_old_T is None:
        raise UserError(f"{reader} needs entropy or batch_entropy")
    counting_T = mask_T & scored_B[rollout_T]
    return float(segments.mean(entropy_old_T, rollout_T * 0, 1, counting_T))
