"""Puts the prompts that a reference is to read in place of the rollouts' own."""

import torch

from strop.batch import segments
from strop.batch.batch import KEPT_AT, KEPT_IDS, NUM_KEPT, Batch
from strop.support.errors import UserError


def reprompted(batch: Batch) -> Batch:
    """The batch as the reference reads it: where the column `prompt_ref_PL` has a prompt for a
    group, it replaces the tokens before the first policy token of each rollout.

    The policy tokens stay the same, in the same order. Returns the batch itself if it has no such
    column. Raises UserError for rollouts of several contexts, each of which would need a prompt.
    """
    if "prompt_ref_PL" not in batch:
        return batch
    if batch.contexts()[1] > batch.size("B"):
        raise UserError(
            "the reference's prompt stands before a whole rollout, and the environment rewrites "
            "the context of later turns: give an environment that does not (Replay: "
            "rewrites=False)"
        )
    prompt_BL = batch["prompt_ref_PL"][batch["group_B"]]
    rollout_T, mask_T = batch["rollout_T"], batch["mask_T"]
    before_T = segments.sum_until(mask_T.long(), rollout_T, batch.size("B")) == 0
    kept_T = ~(before_T & (prompt_BL >= 0).any(1)[rollout_T])
    rollout_N, place_N = (prompt_BL >= 0).nonzero(as_tuple=True)
    order = torch.argsort(torch.cat([rollout_N, rollout_T[kept_T]]), stable=True)
    first_B = segments.first(batch["rollout_K"], batch.size("B"))  # turns of the prompts
    joined = {
        "id_T": torch.cat([prompt_BL[rollout_N, place_N], batch["id_T"][kept_T]]),
        "mask_T": torch.cat([torch.zeros_like(rollout_N, dtype=torch.bool), mask_T[kept_T]]),
        "turn_T": torch.cat([first_B[rollout_N], batch["turn_T"][kept_T]]),
    }
    tables = ["rollout_K", "group_B", "uid_P", "draw_P"]
    if KEPT_IDS in batch:  # the reference's log-probabilities are over the policy's kept sets
        for name in (KEPT_AT, NUM_KEPT):
            joined[name] = torch.cat([torch.zeros_like(rollout_N), batch[name][kept_T]])
        tables.append(KEPT_IDS)
    columns = {name: column[order] for name, column in joined.items()}
    return Batch(columns | {name: batch[name] for name in tables})
