"""Agents: users' functions that call the model themselves; each episode runs in its own process.

    def play(row):                      # my_agent.py; `row` is a row of the data
        answer = OpenAI().chat.completions.create(model="policy", messages=[...])
        return 1.0 if right(answer) else 0.0

The process's environment holds the address and the key that `OpenAI()` reads.
"""

import itertools
import pickle
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from socket import socket
from typing import Any

from strop.environments import agent_process
from strop.environments.agent_process import Outcome
from strop.environments.verifiers_server import FAMILY as VERIFIERS
from strop.support import guarded_process
from strop.support.errors import UserError
from strop.support.guarded_process import GuardedProcess
from strop.support.loading import name_to_load, search_path
from strop.support.processes import Restarts

FAMILY = "agent:"
NAME = re.compile(r".+(\.py|\.pickle|\w):\w+")
EARLY = "; make the client in the function: the address and the key are those of one rollout"
START_SECONDS = 120.0  # for the process to start and to import the user's file


def agent_of(task: str) -> str | None:
    """The agent's function that a task names, `file.py:function`; None for other tasks.

    Raises UserError for a malformed name after `agent:`. An address after `verifiers:` is the
    server that plays in place of a function, and is returned unchanged.
    """
    if task.startswith(VERIFIERS):
        if "://" not in task:
            raise UserError(f"data.task={task}: give an address, verifiers:tcp://127.0.0.1:5000")
        return task
    if not task.startswith(FAMILY):
        return None
    name = task.removeprefix(FAMILY)
    if not NAME.fullmatch(name):
        raise UserError(f"data.task={task}: give the agent's function, agent:my_agent.py:play")
    return name


def task_of_function(play: Any) -> str:
    """The name of the task of an agent's function. Raises UserError for one without a name."""
    if not play.__qualname__.isidentifier():
        raise UserError(
            f"task is {play.__qualname__}, which cannot be loaded again by a name: define "
            "the agent's function at the top of the script or notebook, or give agent:FILE.py:NAME"
        )
    return f"{FAMILY}{name_to_load(play)}"


@dataclass(eq=False)
class Agent:
    """A running episode. ended: how it ended, once it has; the future never has an exception."""

    owner: "Agents"
    number: int
    ended: "Future[Outcome]" = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.ended.set_running_or_notify_cancel()  # who awaits it may give up, and not cancel it

    def end(self) -> None:
        """End the episode now, with all processes that it started."""
        self.owner.end(self.number)


class Agents:
    """The process that runs the agents of one function; it is restarted where it is lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = GuardedProcess()
        self.numbers = itertools.count()
        self.running: dict[int, Agent] = {}
        self.lock = threading.RLock()
        self.restarts = Restarts(f"the process of the agents {name} was lost")
        self.reader: threading.Thread | None = None
        self.lost = ""  # why it was lost, if it was since its last start

    def start(self) -> None:
        """Start the process, which imports the user's file. Raises UserError where that fails."""
        with self.lock:
            if self.process.channel is not None:
                return
            if self.lost:
                self.restarts.count(self.lost)
                self.lost = ""
            channel = self.process.launch(agent_process.__name__)
            channel.settimeout(START_SECONDS)
            try:
                guarded_process.send(channel, pickle.dumps((search_path(), self.name)))
                _, why = pickle.loads(guarded_process.receive(channel))
            except (EOFError, OSError) as error:
                why = str(error) or "it ended at once"
            if why:
                self.process.end()
                hint = EARLY if re.search("OPENAI|ANTHROPIC|api_key", why) else ""
                raise UserError(f"the agent {self.name} cannot be loaded: {why}{hint}")
            channel.settimeout(None)
            self.reader = threading.Thread(target=self._read, args=(channel,), daemon=True)
            self.reader.start()

    def begin(self, row: Mapping[str, Any], environment: Mapping[str, str]) -> Agent:
        """Call the function with a row and with these variables in its environment.

        Raises UserError where its process cannot be started, RunStopped where it was lost too
        often in a row.
        """
        with self.lock:
            self.start()
            agent = Agent(self, next(self.numbers))
            self.running[agent.number] = agent
            self._send(("begin", agent.number, dict(row), dict(environment)))
            return agent

    def end(self, number: int) -> None:
        """End an episode now, if it has not ended."""
        with self.lock:
            if number in self.running:
                self._send(("end", number))

    def close(self) -> None:
        """End all episodes and their process."""
        with self.lock:
            self.process.end()
        if self.reader is not None:
            self.reader.join()
            self.reader = None

    def _send(self, message: Any) -> None:
        if self.process.channel is not None:  # otherwise the reader reports them as lost
            try:
                guarded_process.send(self.process.channel, pickle.dumps(message))
            except OSError:
                return

    def _read(self, channel: socket) -> None:
        """Receive the outcomes of agents until their process is gone."""
        while True:
            try:
                _, number, outcome = pickle.loads(guarded_process.receive(channel))
            except (EOFError, OSError):
                self._lost(channel)
                return
            self.restarts.worked()
            # Without the lock: `begin` holds it until its row is read, and the process reads no row
            # before its outcomes are received.
            agent = self.running.pop(number, None)
            if agent is not None:
                agent.ended.set_result(outcome)

    def _lost(self, channel: socket) -> None:
        with self.lock:
            lost, self.running = list(self.running.values()), {}
            if self.process.channel is channel:  # not closed by this process
                why = self.lost = self.process.how_it_died()
                self.process.end()
            else:
                why = "the run was closed"
        for agent in lost:
            agent.ended.set_result(Outcome("lost", why=f"the process of the agents: {why}"))
