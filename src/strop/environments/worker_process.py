"""A worker process of this machine that plays episodes: the caller's side and its own."""

import os
import pickle
import socket
import sys
import time
from typing import Any

from strop.environments.workers import EpisodeHost, WorkerLost
from strop.support import guarded_process
from strop.support.errors import RunStopped, UserError
from strop.support.guarded_process import GuardedProcess
from strop.support.loading import search_path

START_SECONDS = 120.0  # for a process to start and to import the environment


class ProcessWorker(GuardedProcess):
    """A worker in a process of its own, which starts at the first call and is restarted when it is
    lost, until it is closed.
    """

    closed = False

    def call(self, method: str, *given: Any, seconds: float) -> Any:
        """Call a method of `EpisodeHost`; see `Worker`."""
        try:
            channel = self.channel
            if channel is None:
                channel = self._launched()
                guarded_process.send(channel, pickle.dumps(search_path()))
                seconds += START_SECONDS
            channel.settimeout(seconds)
            guarded_process.send(channel, pickle.dumps((method, given)))
            reply = guarded_process.receive(channel, time.monotonic() + seconds)
        except TimeoutError:
            self.end()
            raise
        except (EOFError, OSError) as error:
            why = self.how_it_died() if self.process is not None else str(error)
            self.end()
            raise WorkerLost(why) from error
        well, value = pickle.loads(reply)
        if isinstance(value, WorkerLost):  # its episodes have stepped: they are to be replayed
            self.end()
        if not well:
            raise value
        return value

    def close(self) -> None:
        """End the process, also while it is busy."""
        self.closed = True
        self.end()

    def _launched(self) -> socket.socket:
        """Start a new process. Raises WorkerLost where the worker was closed."""
        if not self.closed:
            channel = self.launch(__name__)
            if not self.closed:
                return channel
            self.end()
        raise WorkerLost("the run was closed")


def main(channel: socket.socket) -> None:
    """Answer the calls that arrive on a socket until its other end closes."""
    search = pickle.loads(guarded_process.receive(channel))
    sys.path += [place for place in search if place not in sys.path]
    there = EpisodeHost()
    while True:
        try:
            method, given = pickle.loads(guarded_process.receive(channel))
        except EOFError:
            os._exit(0)
        guarded_process.send(channel, _answer(there, method, given))


def _answer(there: EpisodeHost, method: str, given: tuple[Any, ...]) -> bytes:
    """The pickled result of a call."""
    try:
        return pickle.dumps((True, getattr(there, method)(*given)))
    except (UserError, RunStopped) as error:
        return pickle.dumps((False, type(error)(str(error))))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        return pickle.dumps((False, WorkerLost(f"what it shows cannot be sent: {error}")))
