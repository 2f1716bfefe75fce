"""The kept sets of a batch: for each token the part of the vocabulary that the draw's rules left.

The ids of all sets lie end to end in `kept_ids`, which is one value of the run; a token has the
place of its first id, `kept_at_T`, and their number, `num_kept_T`: 0 where nothing was cut, -1
where nothing is known. So rows can be taken, dropped and mixed unchanged, and joining two batches
(`Batch.join`) appends the ids of one to those of the other.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from strop.batch.batch import KEPT_AT, KEPT_IDS, NUM_KEPT, Batch
from strop.support.errors import UserError

UNKNOWN = -1


def kept_columns(sets: Sequence[bytes | None], mask_T: Tensor) -> dict[str, Tensor]:
    """The columns of a batch from the sets of its policy tokens, in order: int32 ids as bytes;
    empty: all tokens; None: unknown.
    """
    sizes = [UNKNOWN if each is None else len(each) // 4 for each in sets]
    number_T = torch.zeros(mask_T.shape[0], dtype=torch.int64)
    number_T[mask_T] = torch.tensor(sizes, dtype=torch.int64)
    size_T = number_T.clamp(min=0)
    ids = np.frombuffer(b"".join(filter(None, sets)), dtype=np.int32)
    return {
        KEPT_AT: size_T.cumsum(0) - size_T,
        NUM_KEPT: number_T,
        KEPT_IDS: torch.from_numpy(ids.copy()),
    }


def check_known(batch: Batch) -> None:
    """Raise UserError for a token that an engine drew and whose kept set is unknown.

    Tokens that were drawn in another context, or come from elsewhere, have no known draw at all.
    """
    drawn_T = batch["mask_T"] & (batch["version_T"] >= 0) & ~batch["logp_behavior_T"].isnan()
    known_T = batch[NUM_KEPT] != UNKNOWN if NUM_KEPT in batch.columns else ~batch["mask_T"]
    if num := int((drawn_T & ~known_T).sum()):
        raise UserError(
            f"rollout.sampling_mask=renormalise: for {num} tokens of this step it is not known "
            "what top_p, top_k or min_p had left, because the method's rollouts do not keep it: "
            "take another method, or sampling_mask=weigh or ignore"
        )
