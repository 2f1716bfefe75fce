"""Run the user's agent for every draw; its calls of the model are the rollout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine, gather
from strop.method.part import Draw, require
from strop.method.services import AgentEnd, Agents, Log, Sampling, Texts
from strop.parts.rollout._agent_calls import AgentCalls
from strop.parts.rollout._playing import PLAYED
from strop.parts.rollout._recorded import drift_of, recorded
from strop.parts.rollout.base import Rollouts, SamplingFields
from strop.traces.joining import FORK_THRESHOLD
from strop.traces.records import Rollout, TurnRecord


@dataclass(frozen=True)
class RunAgents(SamplingFields):
    """The policy learns from an agent: a program that calls the model itself, as a server.

        call i of a rollout: token ~ softmax(logits / temperature), cut by top_k, top_p, min_p
        calls join to contexts by their tokens (`strop.traces.joining`)

    The agent is the function of `data.task=agent:FILE.py:FUNCTION`, called with the draw's row in a
    process of its own. What it returns is the reward.

    Reads: draws; agents.   Writes: the token, turn, rollout and prompt tables.
    Source: none; records of calls as in TRL 1.16 (`experimental/async_grpo`).
    Differs from the source: no answer is overwritten as a whole (`strop.traces.joining`).
    Nearest part: play_turns, where the program is an environment that answers the policy.
    Edges: temperature and cuts are the run's, whatever the call asks for; max_tokens and ends of
    the call hold. A call beyond max_turns, or without room in the context, is refused, and that is
    the exit of an agent that then fails, or makes max_turns such calls. An agent that fails
    otherwise, or takes too long between two calls, earns 0; one that never calls the model has a
    rollout without actions. A call that the agent gives up is stopped and is no part of the
    rollout; an agent whose connection fails because of that took too long.
    """

    writes: ClassVar[tuple[str, ...]] = (*PLAYED, "sequence_T")
    needs_agent: ClassVar[bool] = True
    by_draw: ClassVar[bool] = True
    # Most calls of a rollout. Default: ours.
    max_turns: int = 64
    # Drift, in tokens, at which a rewritten prompt begins a new context. Default: released
    # code (TRL's fork_threshold).
    fork_threshold: int = FORK_THRESHOLD

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_turns", "fork_threshold", low=1)

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        agents: Agents, log: Log, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        seeds = torch.randint(2**62, (len(uids),), generator=rng).tolist()
        stage = _Stage(self, engine, texts, sampling, agents)
        rollouts = await gather(map(stage.play, uids, seeds))
        batch = recorded(draws, rollouts, seeds, log, self.fork_threshold, texts)
        return batch, None, drift_of(rollouts, self.fork_threshold)


@dataclass
class _Stage:
    """The resources with which agents are run."""

    part: RunAgents
    engine: AsyncEngine
    texts: Texts
    sampling: Sampling
    agents: Agents

    async def play(self, uid: int, seed: int) -> Rollout:
        """One rollout: an agent from its start to its end."""
        async with self.agents.begin(uid) as episode:
            part = self.part
            calls = AgentCalls(part, part.max_turns, self.engine, self.sampling, episode, seed)
            try:
                outcome = await calls.listen()
            finally:
                calls.stop()
        if calls.broken is not None:
            raise calls.broken
        return self.rollout(uid, calls, outcome)

    def rollout(self, uid: int, calls: AgentCalls, end: AgentEnd) -> Rollout:
        """The whole rollout, with what the agent said of itself."""
        records = tuple(record for each in calls.records for record in each)
        value: Any = end.value
        rewards: dict[str, float] = {}
        if isinstance(value, Mapping):
            rewards = {name: float(each) for name, each in value.items() if each is not None}
            whole = sum(rewards.values()) if rewards or not value else None
            value = rewards.pop("reward", None) if "reward" in value else whole
        if value is None and self.agents.are_judged:
            value = 0.0  # reward functions say more
        if end.rollout is not None:
            records = as_drawn(end.rollout.turns, records)
        return Rollout(
            records or (empty_record(self.texts.prompt_ids(uid)),),
            None if value is None else float(value), exit=calls.exit_of(end), why=end.why,
            rewards=rewards,
        )  # fmt: skip


def as_drawn(kept: Sequence[TurnRecord], drawn: Sequence[TurnRecord]) -> tuple[TurnRecord, ...]:
    """The calls that were kept of those that were drawn, with all that is known of their tokens."""
    known = {(each.prompt_ids, each.output_ids): each for each in drawn}
    return tuple(
        replace(known.get((each.prompt_ids, each.output_ids), each), output_mask=each.output_mask)
        for each in kept
    )


def empty_record(prompt_ids: tuple[int, ...]) -> TurnRecord:
    """The record of an agent that never called the model: nothing to learn from."""
    *before, last = prompt_ids
    return TurnRecord(tuple(before) or (last,), (last,), (0.0,), (False,))
