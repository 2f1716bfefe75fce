"""Take whole rollouts that others post while the run trains, and answer their calls meanwhile."""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw, require
from strop.method.services import Live, Log, Sampling, Scoring, Taken, Texts
from strop.parts.rollout._playing import PLAYED
from strop.parts.rollout._recorded import drift_of, recorded
from strop.parts.rollout._served_calls import ServedCalls
from strop.parts.rollout.base import Rollouts, SamplingFields
from strop.parts.rollout.read_traces import scored_here
from strop.traces.joining import FORK_THRESHOLD

LOOK_SECONDS = 0.05  # between two checks for posted rollouts


@dataclass(frozen=True)
class ReceiveTraces(SamplingFields):
    """The policy learns from rollouts that others make of its answers, and post.

        while fewer than num_prompts groups are whole: draw whatever clients ask for
        the step's groups: the first ones that were whole, in the order in which they became so

    Reads: draws (their number alone); live.   Writes: the token, turn, rollout and prompt tables,
    sequence_T [T] int, player_B, role_B, episode_B and what was recorded of each turn.
    Source: none; joined as in TRL 1.16 (async_grpo), with what `traces/joining.py` says.
    Differs from the source: no.
    Nearest part: read_traces, whose rollouts are all there when the run begins; run_agents, whose
    agents the run starts itself.
    Edges: temperature and cuts are the run's, whatever a call asks for; groups with older tokens
    than training.max_staleness allows are passed over; tokens without a log-probability have that
    of the current policy; the state is how many groups were taken, so a restart takes none twice.
    """

    writes: ClassVar[tuple[str, ...]] = (*PLAYED, "sequence_T")
    needs_live: ClassVar[bool] = True
    # As read_traces. Default: released code (TRL's fork_threshold).
    fork_threshold: int = FORK_THRESHOLD

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "fork_threshold", low=1)

    def init(self) -> dict[str, int]:
        """Nothing was taken."""
        return {"taken": 0}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        live: Live, scoring: Scoring, log: Log, state: dict[str, Any], rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        seed = int(torch.randint(2**62, (), generator=rng))
        taken = await self._taken(draws, engine, sampling, live, state["taken"], seed)
        whole, rollouts = [], []
        for draw, (uid, number, theirs) in zip(draws, live.rollouts(taken), strict=True):
            whole.append(draw._replace(uid=uid, draw=number, num_rollouts=len(theirs)))
            rollouts += theirs
        seeds = torch.randint(2**62, (len(rollouts),), generator=rng).tolist()
        batch = recorded(whole, rollouts, seeds, log, self.fork_threshold, texts)
        batch, share = scored_here(batch, scoring)
        metrics = {
            **drift_of(rollouts, self.fork_threshold), "turns/scored_here": share,
            "traces/stale_groups": taken.stale, "traces/groups_waiting": float(taken.waiting),
        }  # fmt: skip
        return batch, {"taken": taken.taken}, metrics

    async def _taken(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, sampling: Sampling, live: Live,
        before: int, seed: int,
    ) -> Taken:  # fmt: skip
        """The groups of this step, once they have arrived."""
        live.listen(draws, lambda: engine.version)
        served = live.served
        if served is None or served.engine is not engine:
            served = live.served = ServedCalls(live.calls, engine)
        serving = asyncio.ensure_future(served.serve(self, sampling, seed))
        try:
            while (taken := live.take(len(draws), before)) is None:
                await asyncio.wait([serving], timeout=LOOK_SECONDS)
                if serving.done() or served.broken is not None:
                    raise served.broken or serving.exception() or RuntimeError("nobody serves")
                engine.idle()
            return taken
        finally:
            live.pause()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
