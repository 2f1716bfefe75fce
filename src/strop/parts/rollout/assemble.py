"""Turns what an engine reported into the four tables of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.engines.base import Answer, Event
from strop.method.part import Draw
from strop.support.exits import Exit

COLUMNS = (
    "turn_T", "id_T", "mask_T", "origin_T", "version_T", "logp_behavior_T", "logp_sampler_T",
    "entropy_behavior_T",
    "rollout_K", "index_K", "group_B", "rollout_uid_B", "truncated_B", "exit_B", "parent_B",
    "fork_at_B", "uid_P", "draw_P",
)  # fmt: skip
# of an environment
TURN_COLUMNS = ("reward_K", "done_K", "state_K", "action_K", "role_K", "valid_K", "match_K")


@dataclass
class Turn:
    """Tokens that the policy was given, the events of its action, and what the action did."""

    given: Sequence[int]
    events: Sequence[Event]
    state: int = 0  # key of the state before the action
    role: int = 0
    action: int = 0  # key of the action's text
    reward: float = 0.0
    done: bool = False
    valid: bool = True
    match: bool = True  # the action was the one that was wanted
    opens: bool = False  # what it was given is a context of its own


def assemble(draws: Sequence[Draw], answers: Sequence[Answer]) -> Batch:
    """One single-turn rollout per answer, in order; answers of a draw lie together.

    A rollout with a request that failed is lost: it is not scored.
    What the requests did not ask for of "logp_model" and "entropy" is void (NaN). The prompt's
    tokens have mask 0 and log-probabilities 0.
    """
    return assemble_turns(
        draws,
        [answer.request.seed for answer in answers],
        [[Turn(answer.request.ids, answer.events)] for answer in answers],
        [answer.ended == "length" for answer in answers],
    )


def assemble_turns(
    draws: Sequence[Draw],
    seeds: Sequence[int],
    rollouts: Sequence[Sequence[Turn]],
    truncated: Sequence[bool],
) -> Batch:
    """One rollout per list of turns, in order; rollouts of a draw lie together.

    Each turn's given tokens (mask 0, origin 1) stand before its action's. Columns of rewards and
    states are left to `with_turns`.
    """
    turns = list(chain.from_iterable(rollouts))
    answers = [list(chain.from_iterable(e.ids for e in turn.events)) for turn in turns]
    given_K = torch.tensor([len(turn.given) for turn in turns])
    size_K = given_K + torch.tensor([len(answer) for answer in answers])
    turns_B = torch.tensor([len(each) for each in rollouts])
    rollout_K = torch.repeat_interleave(torch.arange(len(rollouts)), turns_B)
    first_B = torch.cumsum(turns_B, 0) - turns_B
    turn_T = torch.repeat_interleave(torch.arange(len(turns)), size_K)
    within = torch.arange(int(size_K.sum())) - (torch.cumsum(size_K, 0) - size_K)[turn_T]
    mask_T = within >= given_K[turn_T]
    ids = chain.from_iterable(
        chain(turn.given, answer) for turn, answer in zip(turns, answers, strict=True)
    )
    events = [event for turn in turns for event in turn.events]
    versions = [[e.version] * len(e.ids) for e in events]
    alone = torch.full((len(rollouts),), -1)
    group_B = torch.repeat_interleave(
        torch.arange(len(draws)), torch.tensor([draw.num_rollouts for draw in draws])
    )
    return Batch(
        {
            "turn_T": turn_T,
            "id_T": torch.tensor(list(ids)),
            "mask_T": mask_T,
            "origin_T": torch.where(mask_T, 0, 1),
            "version_T": _answer_column(versions, mask_T, torch.int64),
            "logp_behavior_T": _answer_column([e.logp for e in events], mask_T),
            "logp_sampler_T": _answer_column([e.told("logp_model") for e in events], mask_T),
            "entropy_behavior_T": _answer_column([e.told("entropy") for e in events], mask_T),
            "rollout_K": rollout_K,
            "index_K": torch.arange(len(turns)) - first_B[rollout_K],
            "group_B": group_B,
            "rollout_uid_B": torch.tensor(seeds),
            "truncated_B": torch.tensor(truncated),
            "exit_B": torch.tensor(
                [_exit(each, cut) for each, cut in zip(rollouts, truncated, strict=True)],
                dtype=torch.int64,
            ),
            "parent_B": alone,
            "fork_at_B": alone.clone(),
            "uid_P": torch.tensor([draw.uid for draw in draws]),
            "draw_P": torch.tensor([draw.draw for draw in draws]),
        }
    )


def _exit(turns: Sequence[Turn], truncated: bool) -> Exit:
    """How a rollout ended."""
    if any(event.ended == "failed" for turn in turns for event in turn.events):
        return Exit.ENGINE_LOST
    return Exit.TOKEN_LIMIT if truncated else Exit.DONE


def with_turns(batch: Batch, rollouts: Sequence[Sequence[Turn]]) -> Batch:
    """The batch of these rollouts with what the environment said of each turn."""
    turns = list(chain.from_iterable(rollouts))
    return batch.set(
        reward_K=torch.tensor([turn.reward for turn in turns], dtype=torch.float32),
        done_K=torch.tensor([turn.done for turn in turns], dtype=torch.bool),
        state_K=torch.tensor([turn.state for turn in turns], dtype=torch.int64),
        action_K=torch.tensor([turn.action for turn in turns], dtype=torch.int64),
        role_K=torch.tensor([turn.role for turn in turns], dtype=torch.int64),
        valid_K=torch.tensor([turn.valid for turn in turns], dtype=torch.bool),
        match_K=torch.tensor([turn.match for turn in turns], dtype=torch.bool),
    )


def with_contexts(batch: Batch, rollouts: Sequence[Sequence[Turn]]) -> Batch:
    """The batch of these rollouts with the contexts that its turns opened."""
    opens_K = torch.tensor([turn.opens for turn in chain.from_iterable(rollouts)], dtype=torch.bool)
    return batch.set(sequence_T=opens_K.long().cumsum(0)[batch["turn_T"]])


def _answer_column(
    pieces: Sequence[Sequence[Any]], mask_T: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A token column from values of the generated tokens only; 0 elsewhere."""
    column = torch.zeros(mask_T.shape[0], dtype=dtype)
    values = list(chain.from_iterable(pieces))
    if values:
        column[mask_T] = torch.tensor(values, dtype=dtype)
    return column
