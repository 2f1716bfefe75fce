"""The agent of a task: its episodes in processes of their own, and the server that they call."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from strop.engines.asynchronous import elsewhere
from strop.environments.agent_process import Outcome
from strop.environments.agents import Agents
from strop.environments.episodes import CallLimits, over_time
from strop.environments.verifiers_server import FAMILY as VERIFIERS
from strop.environments.verifiers_server import VerifiersServer
from strop.method.services import AgentEnd, ModelAnswer, ModelCall, Refused, Withdrawn
from strop.serving.reading import POLICY
from strop.serving.server import PolicyServer
from strop.support.exits import Exit
from strop.training.services.model_calls import CallQueue
from strop.training.services.texts import RunTexts

AT_ONCE = 64  # agents, where data.env_workers does not say
OVER = "the episode of this key is over"


@dataclass
class RunAgents:
    """The agent of a task, if it has one. at_once: most episodes at a time; are_judged: whether
    reward functions score its rollouts too.
    """

    name: str
    texts: RunTexts
    limits: CallLimits = field(default_factory=CallLimits)
    at_once: int = AT_ONCE
    are_judged: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of a server that plays the episodes
    server: PolicyServer | None = None
    episodes: "dict[str, Episode]" = field(default_factory=dict)  # by key
    _rooms: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agents: Agents | VerifiersServer = Agents(self.name)
        if self.name.startswith(VERIFIERS):
            model = str(self.texts.tokenizer.name_or_path)
            self.agents = VerifiersServer(self.name, model, self.options)

    def open(self) -> None:
        """Import the agent's file, and open the server. Raises UserError."""
        self.agents.start()
        if self.server is None:
            texts = self.texts
            self.server = PolicyServer(
                texts.tokenizer, texts.chat, self, model=POLICY,
                max_model_len=texts.limits.context_tokens, keys=self.knows, checks_room=False,
            ).start()  # fmt: skip

    @asynccontextmanager
    async def begin(self, uid: int) -> AsyncIterator["Episode"]:
        """Starts an episode with a prompt's row, once there is room for it, and ends it on exit."""
        loop = asyncio.get_running_loop()
        for old in [each for each in self._rooms if each.is_closed()]:
            del self._rooms[old]
        async with self._rooms.setdefault(loop, asyncio.Semaphore(self.at_once)):
            self.open()
            assert self.server is not None
            episode = Episode(secrets.token_urlsafe(24), self.limits)
            self.episodes[episode.key] = episode
            try:
                prompt = self.texts.prompt(uid)
                row = {"prompt": prompt.prompt, **prompt.columns}
                episode.start(self.agents, row, self.server.url)
                yield episode
            finally:
                del self.episodes[episode.key]
                await episode.end()

    def knows(self, key: str) -> bool:
        """Whether a key belongs to a running episode."""
        return key in self.episodes

    async def say(self, call: ModelCall) -> list[ModelAnswer]:
        """The answers to a call; runs in the server's thread."""
        episode = self.episodes.get(call.key)
        if episode is None:
            raise Refused(401, OVER)
        # The run samples in its own way whatever the call requests, and reports those draws; a
        # greedy one would report the model's log-probabilities.
        return [replace(each, model_log_probs=()) for each in await episode.say(call)]

    def close(self) -> None:
        """End all agents, and the server."""
        self.agents.close()
        if self.server is not None:
            self.server.close()
            self.server = None


class Episode(CallQueue):
    """One call of an agent's function: its calls of the model, and how it ends."""

    def __init__(self, key: str, limits: CallLimits) -> None:
        super().__init__(401, OVER)
        self.key, self.limits = key, limits
        self.agent: Any = None

    def start(self, agents: Agents | VerifiersServer, row: Mapping[str, Any], url: str) -> None:
        """Call the agent's function with a row."""
        environment = {
            "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": self.key,
            "STROP_BASE_URL": url, "STROP_MODEL": POLICY,
        }  # fmt: skip
        self.agent = agents.begin(row, environment)
        self.agent.ended.add_done_callback(lambda ended: self.put(ended.result()))

    async def next(self) -> ModelCall | Withdrawn | AgentEnd:
        """The next call, the withdrawal of one, or the agent's end; an agent that waits for no
        answer ends with a timeout when it takes too long after its last one.
        """
        event = asyncio.ensure_future(self.event())
        try:
            while not event.done():
                left = self.since + self.limits.seconds - time.monotonic()
                if left <= 0 and not self.answers:
                    return AgentEnd(Exit.TIMEOUT, f"the agent: {over_time(self.limits)}", 0.0)
                await asyncio.wait([event], timeout=left if left > 0 else self.limits.seconds)
            found = event.result()
            return ended(found) if isinstance(found, Outcome) else found
        finally:
            event.cancel()

    async def end(self) -> None:
        """End the agent with all that it started, and refuse the calls that it waits for."""
        self.close()
        if self.agent is not None and not self.agent.ended.done():
            self.agent.end()
            await elsewhere(self.agent.ended)


def ended(outcome: Outcome) -> AgentEnd:
    """How an agent's call ended. Its own exceptions are its fault, so that failing pays nothing."""
    if outcome.kind == "lost":
        return AgentEnd(Exit.ENVIRONMENT_CRASH, outcome.why)
    if outcome.kind == "died":
        return AgentEnd(Exit.CRASH, f"the agent's process: {outcome.why}", 0.0)
    if outcome.kind == "raised":
        exit = Exit.UNREACHABLE if outcome.transient else Exit.EXCEPTION
        why = f"the agent raised {outcome.why}"
        return AgentEnd(exit, why, 0.0, timed_out=outcome.timed_out)
    if outcome.kind == "unreadable":
        why = f"the agent returned {outcome.why}: give a finite number, numbers by name, or None"
        return AgentEnd(Exit.UNREADABLE, why, 0.0)
    if outcome.kind == "late":
        return AgentEnd(Exit.TIMEOUT, outcome.why, 0.0)
    return AgentEnd(Exit.DONE, value=outcome.value, rollout=outcome.rollout)
