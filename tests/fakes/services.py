"""Fakes of a run's services to parts: one for each protocol of `strop.method.services`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.data.tool_calls import Call, read_call, tagged_calls
from strop.engines.asynchronous import asynchronous
from strop.engines.base import Answer, Engine, Request
from strop.environments.base import Environment
from strop.environments.episodes import Episodes
from strop.method import part as parts
from strop.method.part import Draw, Use
from strop.method.services import (
    ALONE,
    AgentEnd,
    Graded,
    ModelAnswer,
    ModelCall,
    Player,
    Refused,
    Taken,
)
from strop.parts.rollout.base import RolledOut, roll_out
from strop.support.exits import Exit
from strop.traces.records import Rollout, TurnRecord


class FakeTexts:
    """Prompts and answers as token ids, a piece of text for each token.

    answers: by uid and column; the last token is the end. said: the rollouts' texts, in place of
    their tokens'. rollouts: those that were recorded, by uid.
    """

    def __init__(
        self,
        prompts: Mapping[int, Sequence[int]] = {},
        pieces: Mapping[int, str] = {},
        rows: Mapping[int, Mapping[str, Any]] = {},
        answers: Mapping[tuple[int, str], Sequence[int]] = {},
        special_ids: Sequence[int] = (),
        said: Sequence[str] | None = None,
        rollouts: Mapping[int, Sequence[Rollout]] = {},
    ) -> None:
        self.prompts, self.pieces, self.rows, self.answers = prompts, pieces, rows, answers
        self.special_ids, self.said, self.rollouts = frozenset(special_ids), said, rollouts
        self.ids = {piece: id for id, piece in pieces.items()}

    mixture: Sequence[tuple[str, int, float]] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.ids[character] for character in text)

    def first_known(self, words: Sequence[str], option: str) -> str:
        known = {*self.ids, *(f"{{{name}}}" for name in ("prompt", "answer", "report", "text"))}
        for each in words:
            if set(re.findall(r"\{\w+\}|.", each, re.DOTALL)) <= known:
                return each
        return words[-1]

    def decode(self, ids: Sequence[int], special: bool = True) -> str:
        return "".join(self.pieces[id] for id in ids if special or id not in self.special_ids)

    def row(self, uid: int) -> Mapping[str, Any]:
        return self.rows[uid]

    def values(self, column: str, uids: Sequence[int]) -> Sequence[Any]:
        return [self.rows[uid].get(column) for uid in uids]

    def prompt_ids(self, uid: int) -> tuple[int, ...]:
        return tuple(self.prompts[uid])

    def prompt_text(self, uid: int) -> str:
        return self.decode(self.prompt_ids(uid))

    def question(self, uid: int) -> str:
        return self.prompt_text(uid)

    def reworded_ids(self, uid: int, words: str, answer: Sequence[int]) -> tuple[int, ...]:
        words = words.replace("{answer}", "")  # the answer stands at the end
        if "{prompt}" in words:
            return (*self.encode(words.replace("{prompt}", self.prompt_text(uid))), *answer)
        return (*self.prompt_ids(uid), *self.encode(words), *answer)

    def answer_ids(self, uid: int, column: str = "completion", end: bool = True) -> tuple[int, ...]:
        ids = tuple(self.answers.get((uid, column), ()))
        return ids if end else ids[:-1]

    def recorded(self, uid: int) -> Sequence[Rollout]:
        return self.rollouts[uid]

    def decoded(self, batch: Batch) -> tuple[list[Any], list[str]]:
        uids = batch["uid_P"][batch["group_B"]].tolist()
        prompts = [self.prompts.get(uid) for uid in uids]
        if self.said is not None:
            return prompts, list(self.said)
        return prompts, [self.decode(ids, special=False) for ids in self.completion_ids(batch)]

    def completion_ids(self, batch: Batch) -> list[list[int]]:
        ids = batch["id_T"][batch["mask_T"]]
        return [piece.tolist() for piece in torch.split(ids, batch["length_B"].tolist())]


@dataclass
class FakeGrading:
    """outcome: tokens of an answer -> number, or None for no score. `graded`: what was asked."""

    outcome: Callable[[Sequence[int]], float | None] = lambda ids: 0.0
    reward_names: tuple[str, ...] = ("reward",)
    reward_weights: tuple[float, ...] = (1.0,)
    read_answer: Callable[[str], str | None] = lambda text: text
    can_grade: bool = True
    graded: list[list[int]] = field(default_factory=list)

    def grade(self, batch: Batch) -> Graded:
        answers = FakeTexts().completion_ids(batch)
        self.graded += answers
        found = [self.outcome(answer) for answer in answers]
        outcome_B = torch.tensor([value or 0.0 for value in found])
        scored_B = torch.tensor([value is not None for value in found])
        return Graded(outcome_B[:, None], outcome_B, scored_B, {}, batch["group_B"] * 0)

    def grade_beside(self, batch: Batch, opponents: Sequence[str]) -> Graded:
        return self.grade(batch)

    def final_answers(self, texts: Sequence[str]) -> list[str | None]:
        return [self.read_answer(text) for text in texts]


@dataclass
class FakeSampling:
    """Requests to an engine. `asked`: what it was asked."""

    engine: Any = None
    answer_tokens: int = 100
    episode_tokens: int = 100
    context_tokens: int = 100
    stop_ids: tuple[int, ...] = (0,)
    stop_strings: tuple[str, ...] = ()
    wanted_statistics: frozenset[str] = frozenset({"logp_model", "entropy"})
    asked: list[Request] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def request(self, ids: Sequence[int], max_tokens: int, seed: int, **changes: Any) -> Request:
        plain = Request(tuple(ids), max_tokens, seed=seed, stop_ids=self.stop_ids)
        return replace(plain, **changes)

    def players(self, game: int) -> Callable[[int], Player]:
        return lambda role: ALONE

    @property
    def explores(self) -> bool:
        return False

    def sample_explorer(self, requests: Sequence[Request]) -> list[Answer]:
        raise AssertionError("there is no explorer")

    def sample_newest(self, requests: Sequence[Request]) -> list[Answer]:
        with self.engine.newest():
            return self.sample(requests)

    def sample(self, requests: Sequence[Request]) -> list[Answer]:
        self.asked += requests
        return asynchronous(self.engine).sample(requests)


@dataclass
class FakeScoring:
    """columns: (batch, names) -> columns, the same under each of `policies`."""

    columns: Callable[[Batch, tuple[str, ...]], dict[str, Tensor]] | None = None
    context_tokens: int = 100
    policies: tuple[str, ...] = ("current",)
    table_VD: Tensor | None = None
    norms: Callable[[Batch], Tensor] | None = None
    scored: list[tuple[int, str]] = field(default_factory=list)  # rollouts, policy

    def score(self, batch: Batch, policy: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        assert policy in self.policies
        assert self.columns is not None
        self.scored.append((batch.size("B"), policy))
        return self.columns(batch, names)

    def hidden(self, batch: Batch) -> Iterator[tuple[list[int], tuple[Tensor, ...]]]:
        raise NotImplementedError("take the trainer's own")

    def gradient_norms(self, batch: Batch) -> Tensor:
        assert self.norms is not None
        return self.norms(batch)

    def embeddings(self) -> Tensor:
        assert self.table_VD is not None
        return self.table_VD


@dataclass
class FakeLog:
    """Everything that was ever logged."""

    logged: dict[str, dict[int, Any]] = field(default_factory=dict)

    def log_rollouts(self, name: str, values: Mapping[int, Any]) -> None:
        self.logged.setdefault(name, {}).update(values)


@dataclass
class FakeEpisodes:
    """An environment whose observations are letters, a token each, and actions digits.

    texts: token of an action -> its text, in place of its digits. first: tokens before what a
    player sees who does not begin. said: (text, token before it) of every observation.
    """

    kind: type[Environment] | None = None
    letters: Mapping[str, int] = field(default_factory=dict)
    texts: Sequence[str] | None = None
    first: tuple[int, ...] = ()
    said: list[tuple[str, int]] = field(default_factory=list)
    are_played: bool = True

    def begin_episodes(self, uids: Sequence[int]) -> Episodes:
        class Source:
            name = "by hand"
            make = self.kind

        source: Any = Source
        return Episodes(source, uids)

    def observation_ids(self, text: str, last: int, *more: Any) -> tuple[int, ...]:
        self.said.append((text, last))
        return tuple(self.letters[letter] for letter in text)

    drops_thoughts = False

    def rewritten_ids(self, shown: Sequence[Any], actions: Sequence[str], newest: int) -> Any:
        raise NotImplementedError("take the trainer's own")

    def context_ids(self, text: str) -> tuple[int, ...]:
        return self.observation_ids(text, -1)

    def opening_ids(self, text: str) -> tuple[int, ...]:
        return (*self.first, *self.observation_ids(text, -1))

    def action_texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        texts = self.texts
        if texts is None:
            return ["".join(str(id) for id in each if id) for each in ids]
        return ["".join(texts[id] for id in each) for each in ids]

    def tool_calls(self, actions: Sequence[str]) -> list[list[Call]]:
        return [tagged_calls(action) for action in actions]

    def read_calls(self, given: Sequence[Any]) -> list[Call]:
        return [read_call(each) for each in given]


class FakeAgentEpisode:
    """An agent in this process: the prompts that it asks with, after each answer so far, and what
    it returns. refused: it fails, as agents do.
    """

    def __init__(self, asks: Callable[[list[Any]], Any], value: Any) -> None:
        self.asks, self.value = asks, value
        self.told: list[Any] = []
        self.refused: Refused | None = None
        self.answered = asyncio.Event()
        self.answered.set()

    async def next(self) -> ModelCall | AgentEnd:
        await self.answered.wait()
        if self.refused is not None:
            return AgentEnd(Exit.EXCEPTION, f"the agent raised {self.refused}", 0.0)
        call = self.asks(self.told)
        if call is None:
            return AgentEnd(Exit.DONE, value=self.value)
        self.answered.clear()
        return call

    def reply(self, call: ModelCall, answers: list[ModelAnswer]) -> None:
        self.told += answers
        self.answered.set()

    def refuse(self, call: ModelCall, why: Refused) -> None:
        self.refused = why
        self.answered.set()


@dataclass
class FakeAgents:
    """Agents that ask once for prompts of even uids, and twice for a token each for others."""

    prompt_ids: Callable[[int], Sequence[int]]
    value: Any = 1.0
    are_judged: bool = False

    @asynccontextmanager
    async def begin(self, uid: int) -> AsyncIterator[FakeAgentEpisode]:
        yield FakeAgentEpisode(lambda told: self.asks(uid, told), self.value)

    def close(self) -> None:
        """There is nothing to close."""

    def asks(self, uid: int, told: Sequence[ModelAnswer]) -> ModelCall | None:
        """The next call after these answers."""
        if len(told) > uid % 2:
            return None
        ids = (*self.prompt_ids(uid), *(id for each in told for id in each.ids))
        return ModelCall("completions", tuple(ids), max_tokens=1 if uid % 2 else None)


class FakeLive:
    """Clients that ask for an answer to each rollout's prompt, and post what they get.

    more: what else they ask for meanwhile.
    """

    def __init__(
        self,
        prompt_ids: Callable[[int], Sequence[int]],
        reward: Callable[[Sequence[int]], float] = lambda ids: len(ids) % 3,
        more: Sequence[ModelCall] = (),
        max_tokens: int | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.prompt_ids, self.reward, self.more, self.served = prompt_ids, reward, more, None
        self.calls, self.refused = self, list[Exception]()
        self.posted: dict[str, Rollout] = {}  # by call
        self.draws: Sequence[Draw] = ()
        self.asked: list[list[ModelCall]] = []
        self.queue: asyncio.Queue[ModelCall] | None = None

    def listen(self, draws: Sequence[Draw], version: Callable[[], int]) -> None:
        self.draws, self.queue = draws, asyncio.Queue()
        self.asked = [
            [
                ModelCall("generate", tuple(self.prompt_ids(draw.uid)), self.max_tokens)
                for _ in range(draw.num_rollouts)
            ]
            for draw in draws
        ]
        for call in (*(call for calls in self.asked for call in calls), *self.more):
            self.queue.put_nowait(call)
        self.more = ()

    async def event(self) -> ModelCall:
        assert self.queue is not None
        return await self.queue.get()

    def reply(self, call: ModelCall, answers: list[ModelAnswer]) -> None:
        (answer,) = answers
        self.posted[call.id] = Rollout((answer.record(call),), self.reward(answer.ids))

    def refuse(self, call: ModelCall, why: Exception) -> None:
        self.refused.append(why)
        lost = TurnRecord(call.prompt_ids[:-1] or call.prompt_ids, call.prompt_ids[-1:], (0.0,))
        self.posted[call.id] = Rollout(
            (replace(lost, output_mask=(False,)),), exit=Exit.ENGINE_LOST
        )

    def take(self, num_groups: int, taken: int) -> Taken | None:
        if any(call.id not in self.posted for calls in self.asked for call in calls):
            return None
        return Taken([], taken + num_groups, 1, 2)

    def pause(self) -> None:
        """Nobody asks any more."""

    def rollouts(self, taken: Taken) -> list[tuple[int, int, list[Rollout]]]:
        return [
            (draw.uid, draw.draw, [self.posted[call.id] for call in calls])
            for draw, calls in zip(self.draws, self.asked, strict=True)
        ]

    def close(self) -> None:
        """There is nothing to close."""


class FakeStores:
    """Files in memory, for as long as the object lives."""

    def __init__(self) -> None:
        self.files: dict[int, dict[str, Tensor]] = {}

    def put(self, step: int, columns: Mapping[str, Tensor]) -> int:
        number = (step << 32) | (len(self.files) + 1)
        self.files[number] = {name: column.clone() for name, column in columns.items()}
        return number

    def get(self, number: int) -> dict[str, Tensor]:
        return self.files[number]


# Data that parts store in one call of a test are found by a later call in the same process.
SHELF = FakeStores()


@dataclass
class FakeServices:
    """All of them, each as empty as it may be."""

    texts: Any = field(default_factory=FakeTexts)
    grading: Any = field(default_factory=FakeGrading)
    sampling: Any = field(default_factory=FakeSampling)
    scoring: Any = field(default_factory=FakeScoring)
    log: Any = field(default_factory=FakeLog)
    episodes: Any = field(default_factory=FakeEpisodes)
    agents: Any = None
    live: Any = None
    stores: Any = SHELF


def rolled_out(
    part: Any,
    draws: Sequence[Draw],
    engine: Engine,
    services: Any,
    rng: torch.Generator,
    state: Any = None,
) -> RolledOut:
    """What the strategy of a rollout part comes to on an engine."""
    handed = {"draws": tuple(draws), "engine": asynchronous(engine), "rng": rng, "state": state}
    called = parts.call(Use(part), None, services=services, **handed)
    return roll_out(called.value, engine, services)


class Steps:
    """Step after step of one strategy on one engine, whose weights the caller may change."""

    def __init__(
        self, part: Any, engine: Any, prompts: Mapping[int, Any], answer_tokens: int
    ) -> None:
        self.part, self.engine = part, engine
        self.services = over_table(engine, prompts, answer_tokens=answer_tokens)
        self.state = part.init() if hasattr(part, "init") else None
        self.submitted: list[Any] = []
        start = engine.start
        engine.start = lambda id, request, source: (
            self.submitted.append(request) or start(id, request, source)
        )

    def __call__(self, draws: Sequence[Draw], seed: int = 0) -> Any:
        rng = torch.Generator().manual_seed(seed)
        self.submitted.clear()
        found = rolled_out(self.part, draws, self.engine, self.services, rng, self.state)
        self.state = found.state
        assert self.engine.rows == {}
        return found


def over_table(
    engine: Any,
    prompts: Mapping[int, Sequence[int]],
    outcome: Callable[[Sequence[int]], float | None] = lambda ids: 0.0,
    pieces: Mapping[int, str] = {},
    rows: Mapping[int, Mapping[str, Any]] = {},
    **sampling: Any,
) -> FakeServices:
    """Services over a table engine; sampling: fields of FakeSampling."""
    texts = FakeTexts(prompts, pieces, rows)
    return FakeServices(texts, FakeGrading(outcome), FakeSampling(engine, **sampling))
