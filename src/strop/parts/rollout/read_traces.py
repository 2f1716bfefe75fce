"""Take whole rollouts that others recorded instead of sampling them."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Draw, require
from strop.method.services import Log, Scoring, Texts
from strop.parts.rollout._playing import PLAYED
from strop.parts.rollout._recorded import drift_of, recorded
from strop.parts.rollout.base import Rollouts, SamplingFields
from strop.traces.joining import FORK_THRESHOLD

RECORDED = ("rollouts",)  # what it reads in place of columns of the data


@dataclass(frozen=True)
class ReadTraces(SamplingFields):
    """The policy learns from recorded rollouts: nothing is sampled.

        a draw of a prompt: all rollouts of its group, however many were requested
        calls that continue each other are one context, others begin one of the same rollout

    Reads: draws; texts (the recorded rollouts).   Writes: the token, turn, rollout and prompt
    tables, sequence_T [T] int, player_B, role_B, episode_B and what was recorded of each turn.
    Source: none; joined as in TRL 1.16 (async_grpo), with what `traces/joining.py` says.
    Differs from the source: no.
    Nearest part: read_answers, whose rollouts are answers of the data, with a log-probability of
    no policy.
    Edges: tokens without a recorded log-probability have that of the current policy, so that their
    ratio begins at 1; rollouts without a reward, or that ended by no fault of the policy, are
    unscored; tokens that are not the policy's have mask 0; nothing lasts between steps.
    """

    writes: ClassVar[tuple[str, ...]] = (*PLAYED, "sequence_T")
    needs_traces: ClassVar[bool] = True
    # Tokens of a context in which a rewritten prompt may differ from its last answer and continue
    # from it all the same. Default: released code (TRL's fork_threshold).
    fork_threshold: int = FORK_THRESHOLD

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "fork_threshold", low=1)

    @property
    def given(self) -> tuple[str, ...]:
        """Nothing is sampled."""
        return RECORDED

    async def __call__(
        self, draws: tuple[Draw, ...], texts: Texts, scoring: Scoring, log: Log,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        found = [texts.recorded(draw.uid) for draw in draws]
        whole = [
            draw._replace(num_rollouts=len(theirs))
            for draw, theirs in zip(draws, found, strict=True)
        ]
        rollouts = [rollout for theirs in found for rollout in theirs]
        seeds = torch.randint(2**62, (len(rollouts),), generator=rng).tolist()
        batch = recorded(whole, rollouts, seeds, log, self.fork_threshold, texts)
        batch, share = scored_here(batch, scoring)
        metrics = drift_of(rollouts, self.fork_threshold)
        return batch, None, {**metrics, "turns/scored_here": share}


def scored_here(batch: Batch, scoring: Scoring) -> tuple[Batch, float]:
    """The batch with the policy's own log-probabilities where none were recorded; their share."""
    mask_T = batch["mask_T"]
    unknown_T = mask_T & batch["logp_behavior_T"].isnan()
    if not bool(unknown_T.any()):
        return batch, 0.0
    index_B = torch.unique(batch["rollout_T"][unknown_T])
    found_T = scoring.score(batch.take(index_B), "current", ("logp_T",))["logp_T"].cpu()
    row_T = segments.rows_of(batch["rollout_T"], index_B, batch.size("B"))
    logp_T = torch.zeros_like(batch["logp_behavior_T"])
    logp_T[row_T] = found_T.to(logp_T.dtype)
    columns = {
        name: torch.where(unknown_T, logp_T, batch[name])
        for name in ("logp_behavior_T", "logp_sampler_T")
    }
    return batch.set(**columns), float(unknown_T.sum() / mask_T.sum())
