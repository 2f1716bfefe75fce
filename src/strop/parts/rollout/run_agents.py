"""Run the user's agent for every draw; its calls of the model are the rollout."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine, Begun, gather
from strop.engines.base import Answer
from strop.method.part import Draw, require
from strop.method.services import AgentEnd, AgentEpisode, Agents, Log, Sampling, Texts
from strop.parts.rollout._playing import PLAYED
from strop.parts.rollout._recorded import drift_of, recorded
from strop.parts.rollout.base import Rollouts, SamplingFields
from strop.serving.protocol import ModelAnswer, ModelCall, Refused
from strop.support.exits import Exit
from strop.traces.joining import FORK_THRESHOLD
from strop.traces.records import Rollout, TurnRecord

SPREAD = 0x9E3779B97F4A7C15  # apart by it, seeds of calls have nothing in common


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
    the exit of an agent that then fails. An agent that fails otherwise, or takes too long between
    two calls, earns 0; one that never calls the model has a rollout without actions.
    """

    writes: ClassVar[tuple[str, ...]] = (*PLAYED, "sequence_T")
    needs_agent: ClassVar[bool] = True
    by_draw: ClassVar[bool] = True
    # Most calls of a rollout. Default: ours.
    max_turns: int = 64
    # Drift, in tokens, at which a prompt that is written anew begins a context. Default: released
    # code (TRL's fork_threshold).
    fork_threshold: int = FORK_THRESHOLD

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_turns", low=1)
        require(self, "fork_threshold", low=1)

    def new_tokens(self, usual: int, environment: Any = None) -> tuple[int, int]:
        """Most new tokens of a call, and of a rollout's sequence: as many."""
        tokens = self.max_tokens or usual
        return tokens, tokens

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
    """What agents are played with."""

    part: RunAgents
    engine: AsyncEngine
    texts: Texts
    sampling: Sampling
    agents: Agents

    async def play(self, uid: int, seed: int) -> Rollout:
        """One rollout: an agent from its start to its end."""
        async with self.agents.begin(uid) as episode:
            told = _Told(self, episode, seed)
            try:
                outcome = await told.listen()
            finally:
                told.stop()
        return self.rollout(uid, told, outcome)

    def rollout(self, uid: int, told: "_Told", end: AgentEnd) -> Rollout:
        """The whole rollout, with what the agent said of itself."""
        records = tuple(record for each in told.records for record in each)
        exit = end.exit if end.exit is Exit.DONE or told.limit is None else told.limit
        value: Any = end.value
        rewards: dict[str, float] = {}
        if isinstance(value, Mapping):
            rewards = {name: float(each) for name, each in value.items()}
            value = rewards.pop("reward") if "reward" in rewards else sum(rewards.values())
        if value is None and self.agents.are_judged:
            value = 0.0  # reward functions say more
        return Rollout(
            records or (nothing_said(self.texts.prompt_ids(uid)),),
            None if value is None else float(value), exit=exit, why=end.why, rewards=rewards,
        )  # fmt: skip


@dataclass
class _Told:
    """The calls of one agent so far, in the order in which they came."""

    stage: _Stage
    episode: AgentEpisode
    seed: int
    records: list[list[TurnRecord]] = field(default_factory=list)  # of each call, by choice
    open: dict[asyncio.Task[None], list[Begun]] = field(default_factory=dict)
    last: Answer | None = None
    limit: Exit | None = None  # why a call was refused

    async def listen(self) -> AgentEnd:
        """Answer calls until the agent has ended; how it has.

        What an answer raises is no fault of the agent's, and ends the run.
        """
        next = asyncio.ensure_future(self.episode.next())
        try:
            while True:
                await asyncio.wait({next, *self.open}, return_when=asyncio.FIRST_COMPLETED)
                for task in [each for each in self.open if each.done()]:
                    del self.open[task]
                    task.result()
                if not next.done():
                    continue
                if not isinstance(event := next.result(), ModelCall):
                    return event
                self.records.append([])
                begun: list[Begun] = []
                task = asyncio.ensure_future(self.answer(event, len(self.records) - 1, begun))
                self.open[task] = begun
                next = asyncio.ensure_future(self.episode.next())
        finally:
            next.cancel()

    def stop(self) -> None:
        """End what is still drawn."""
        for task, begun in list(self.open.items()):
            task.cancel()
            for each in begun:
                each.stop()

    async def answer(self, call: ModelCall, number: int, begun: list[Begun]) -> None:
        """Draw the answers to a call, tell the agent, and keep a record of each."""
        part, sampling = self.stage.part, self.stage.sampling
        room = sampling.context_tokens - len(call.prompt_ids)
        if number >= part.max_turns:
            self.limit = Exit.TURN_LIMIT
            self.episode.refuse(call, Refused(400, f"an episode has {part.max_turns} calls"))
            return
        if room < 1:
            self.limit = Exit.TOKEN_LIMIT
            self.episode.refuse(call, Refused(400, "the prompt fills the context"))
            return
        most = min(room, part.max_tokens or sampling.answer_tokens, call.max_tokens or room)
        ends = {"stop_ids": (*sampling.stop_ids, *call.stop_ids),
                "stop_strings": (*sampling.stop_strings, *call.stop_strings)}  # fmt: skip
        for choice in range(call.num):
            seed = (self.seed + SPREAD * (number + (choice << 32))) % 2**64
            request = part.request(sampling, call.prompt_ids, seed, most, keep=True, **ends)
            begun.append(self.stage.engine.begin(request))
        await self.stage.engine.wait(begun)
        answers = [each.answer() for each in begun]
        told = [ModelAnswer.of(each) for each in answers]
        chosen = call.max_tokens == most  # by the agent, so this end cuts nothing
        self.records[number] = [
            replace(each, ended="stop" if chosen else each.ended).record(call)
            for each in told
            if each.ids
        ]
        if lost := [each for each in answers if each.failed]:
            self.limit = Exit.ENGINE_LOST
            self.episode.refuse(call, Refused(500, lost[0].events[-1].why))
            return
        if self.last is not None:
            self.stage.engine.drop(self.last)
        self.last = answers[-1]
        self.episode.reply(call, told)


def nothing_said(prompt_ids: tuple[int, ...]) -> TurnRecord:
    """The record of an agent that never called the model: nothing to learn from."""
    *before, last = prompt_ids
    return TurnRecord(tuple(before) or (last,), (last,), (0.0,), (False,))
