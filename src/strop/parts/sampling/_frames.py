"""Turns of the data as frames of episodes: their order, and the policy's features of each."""

import torch
from torch import Tensor

from strop.method.services import Scoring, Texts
from strop.parts.sampling._prompts import each_prompt, prompt_batch
from strop.support.errors import UserError


def in_order(pool: tuple[int, ...], texts: Texts) -> tuple[list[int], Tensor, Tensor]:
    """Prompts sorted by episode and turn, their episodes (from 0) and stages. Raises UserError."""
    found = []
    for uid in sorted(pool):
        row = texts.row(uid)
        missing = [name for name in ("episode", "stage") if row.get(name) is None]
        if missing:
            raise UserError(
                f"label_by_progress: the row of prompt {uid} has no {missing[0]}: each turn needs "
                "the columns episode and stage (from 0), and turn where rows are not in order"
            )
        if not isinstance(row["stage"], int) or row["stage"] < 0:
            raise UserError(
                f"label_by_progress: the stage of prompt {uid} is {row['stage']!r}: make it a "
                "whole number from 0"
            )
        found.append((str(row["episode"]), row.get("turn"), uid, row["stage"]))
    turns = [turn for _, turn, _, _ in found]
    if any(turn is not None for turn in turns):
        for _, turn, uid, _ in found:
            if type(turn) is not int:
                raise UserError(
                    f"label_by_progress: the turn of prompt {uid} is {turn!r}: make it a whole "
                    "number in every row, or leave the column out where rows are in order"
                )
    found.sort(key=lambda each: (each[0], each[1] or 0, each[2]))
    number = {name: n for n, name in enumerate(dict.fromkeys(each[0] for each in found))}
    episode_N = torch.tensor([number[each[0]] for each in found])
    return [each[2] for each in found], episode_N, torch.tensor([each[3] for each in found])


def features(uids: list[int], texts: Texts, scoring: Scoring) -> Tensor:
    """The policy's last hidden states [N, F] after each prompt."""
    batch = prompt_batch(uids, texts)
    rollout_T = batch["rollout_T"]
    last_T = rollout_T.diff(append=rollout_T[-1:] + 1) != 0
    return each_prompt(batch.set(mask_T=last_T), scoring, lambda _, state_TF: state_TF[-1])
