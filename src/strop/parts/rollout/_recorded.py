"""Makes a batch of rollouts that are lists of recorded calls, of others or of an agent."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from strop.batch.batch import Batch
from strop.method.part import Draw
from strop.method.services import Log, Texts
from strop.parts.rollout._episode import key_of
from strop.parts.rollout.base import Turn, assemble_turns, with_contexts, with_turns
from strop.support.exits import Exit
from strop.traces.joining import FORK_THRESHOLD, Joined, Piece, drift_metrics, join
from strop.traces.records import Rollout

# Statistics of a token from the engine, which count only where the policy learns from it.
STATISTICS = ("version_T", "logp_behavior_T", "logp_sampler_T", "entropy_behavior_T")

NO_REWARD = (
    "it ended without a reward (None), which leaves it unscored: a number is a reward, and so are "
    "several by name"
)


def recorded(
    draws: Sequence[Draw],
    rollouts: Sequence[Rollout],
    seeds: Sequence[int],
    log: Log,
    fork_threshold: int = FORK_THRESHOLD,
    texts: Texts | None = None,
) -> Batch:
    """The batch of these rollouts; those of a draw lie together, in the order of the draws.

    Each call is a turn, each sequence that `join` makes of them a context, in this order. The
    rollout's reward is that of its last turn in the batch, on top of what the call itself earned.
    Tokens that are not to be learned from have mask 0 and origin 1. seeds: names of the rollouts.
    texts: decodes what was shown and said, for the table of rollouts.
    """
    joined = _joined(rollouts, fork_threshold)
    turns = [_turns(*each) for each in zip(rollouts, joined, strict=True)]
    cut = [rollout.turns[-1].ended == "length" for rollout in rollouts]
    batch = assemble_turns(draws, seeds, turns, cut)
    batch = with_turns(with_contexts(batch, turns), turns)
    pieces = [piece for each in joined for piece in each.pieces]
    exits = [_exit(*each) for each in zip(rollouts, cut, strict=True)]
    _log(log, rollouts, turns, seeds, exits, texts)
    nobody_B = torch.zeros(len(rollouts), dtype=torch.int64)
    return _learned(batch, pieces).set(
        exit_B=torch.tensor([int(exit) for exit in exits], dtype=torch.int64),
        player_B=nobody_B,
        role_B=nobody_B.clone(),
        episode_B=torch.tensor(seeds, dtype=torch.int64),
    )


def drift_of(rollouts: Sequence[Rollout], fork_threshold: int = FORK_THRESHOLD) -> dict[str, float]:
    """How the calls of these rollouts followed each other, as metrics: turns/clean and the like."""
    return drift_metrics(_joined(rollouts, fork_threshold))


def _joined(rollouts: Sequence[Rollout], fork_threshold: int) -> list[Joined]:
    return [join(rollout.turns, fork_threshold) for rollout in rollouts]


def _turns(rollout: Rollout, joined: Joined) -> list[Turn]:
    """The rollout's turns, context by context; the last one has its reward."""
    turns = [_turn(piece) for piece in joined.pieces]
    turns[-1].reward += rollout.reward or 0.0
    turns[-1].done = rollout.exit is Exit.DONE and rollout.turns[-1].ended != "length"
    return turns


def _turn(piece: Piece) -> Turn:
    """A call as a turn: equal prompts are one state, equal outputs one action."""
    record = piece.record
    state, action = _key(record.prompt_ids), _key(record.output_ids)
    return Turn(
        piece.given, record.events(piece.kept), state, action=action, reward=record.reward,
        valid=record.valid, opens=piece.opens,
    )  # fmt: skip


def _key(ids: Sequence[int]) -> int:
    return key_of(np.array(ids, dtype="<i8").tobytes())


def _exit(rollout: Rollout, cut: bool) -> Exit:
    """Why it ended. One without a reward has no score, whatever the policy did."""
    if rollout.reward is None and rollout.exit.is_policys:
        return Exit.DECLARED
    return Exit.TOKEN_LIMIT if cut and rollout.exit is Exit.DONE else rollout.exit


def _learned(batch: Batch, pieces: Sequence[Piece]) -> Batch:
    """The batch in which tokens that are not to be learned from are marked as given."""
    learned = [
        learns
        for piece in pieces
        for learns in (piece.record.output_mask or (True,) * piece.kept)[: piece.kept]
    ]
    if all(learned):
        return batch
    mask_T = batch["mask_T"].clone()
    mask_T[batch["mask_T"]] = torch.tensor(learned)
    statistics = {name: torch.where(mask_T, batch[name], 0) for name in STATISTICS}
    return batch.set(mask_T=mask_T, origin_T=torch.where(mask_T, 0, 1), **statistics)


def _log(
    log: Log,
    rollouts: Sequence[Rollout],
    turns: Sequence[Sequence[Turn]],
    seeds: Sequence[int],
    exits: Sequence[Exit],
    texts: Texts | None,
) -> None:
    """Log for the table of rollouts what the batch does not hold."""
    if why := {
        seed: rollout.why or (NO_REWARD if exit is Exit.DECLARED else exit.label)
        for seed, rollout, exit in zip(seeds, rollouts, exits, strict=True)
        if rollout.why or not exit.is_policys
    }:
        log.log_rollouts("exit_why", why)
    named = dict.fromkeys(itertools.chain.from_iterable(each.rewards for each in rollouts))
    for name in named:
        earned = {
            seed: each.rewards[name]
            for seed, each in zip(seeds, rollouts, strict=True)
            if name in each.rewards
        }
        log.log_rollouts(f"recorded_{name}", earned)
    if texts is not None:
        logged = {seed: _texts_of(each, texts) for seed, each in zip(seeds, turns, strict=True)}
        log.log_rollouts("turns", logged)


def _texts_of(turns: Sequence[Turn], texts: Texts) -> list[dict[str, object]]:
    """What was shown and said in each turn, as texts."""
    return [
        {
            "observation": texts.decode(turn.given, special=False),
            "action": texts.decode([id for e in turn.events for id in e.ids], special=False),
            "reward": turn.reward,
            "valid": turn.valid,
        }
        for turn in turns
    ]
