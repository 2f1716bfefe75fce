"""A server that dies, hangs or is slow, as a real process: the run ends or continues, and no step
is trained twice or with rollouts of other weights."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from commands import forked
from fakes.serving import serving
from models import without_times
from runs import Runner

from strop.engines import completions
from strop.engines.vllm import server_engine as vllm
from strop.support.errors import UserError
from strop.support.http import Retries

SECONDS = 6.0  # limit for an answer when a server should hang; a busy machine takes one second


class Servers:
    """Begins servers of the lab's model, and ends them."""

    def __init__(self, model, folder):
        self.model, self.folder, self.started = str(model), folder, []

    def begin(self, dies_at=-1, seconds=0.0):
        """Settings of an engine over a new one."""
        place = self.folder / f"server-{len(self.started)}"
        self.started.append(forked(serving, self.model, place, dies_at, seconds))
        end = time.monotonic() + 120
        while not place.exists():
            assert self.started[-1].is_alive()
            assert time.monotonic() < end
            time.sleep(0.02)
        return {"kind": "vllm", "url": place.read_text(), "timeout_seconds": 60.0}

    def send(self, number):
        """A signal to the newest."""
        os.kill(self.started[-1].pid, number)


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Engines that try again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions, "RETRIES", Retries(3, 0.05))
        patch.setattr(vllm, "ANSWER_SECONDS", 0.2)
        yield


@contextmanager
def servers_of(lab, folder):
    found = Servers(lab.model, folder)
    yield found
    for process in found.started:
        process.kill()
        process.join()


@pytest.fixture
def servers(lab, tmp_path):
    with servers_of(lab, tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def whole(lab, quick, tmp_path_factory):
    """The lines of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    with servers_of(lab, folder) as servers:
        Runner().whole(raw(lab, servers.begin()), folder / "run")
    return without_times(folder / "run")


def raw(lab, engine):
    training = {"steps": 3, "save_every": 1, "lr": 1e-3}
    return lab.raw("grpo", reward="even", engine=engine, training=training)


def at_second(do):
    """What a watcher calls: do something after the second step."""
    return lambda run: do() if run.done == 2 else None


def check_resumed(runner, folder, whole, engine):
    """The rest of the run has the numbers of one that was not broken."""
    runner.go(runner.resume(folder, engine=engine))
    assert without_times(folder) == whole


def test_a_server_that_is_killed_ends_the_run(lab, runner, servers, whole, tmp_path):
    folder = tmp_path / "run"
    run = runner.start(raw(lab, servers.begin()), folder)
    with pytest.raises(UserError, match=r"the server at .*ConnectionRefusedError"):
        runner.go(run, at_second(lambda: servers.send(signal.SIGKILL)))
    assert without_times(folder) == whole[:2]
    check_resumed(runner, folder, whole, servers.begin())


def test_a_server_that_hangs_ends_the_run(lab, runner, servers, whole, tmp_path):
    folder = tmp_path / "run"
    engine = {**servers.begin(), "timeout_seconds": SECONDS}
    with pytest.raises(UserError, match=r"no answer in 6 s, the limit of engine.timeout_seconds"):
        runner.go(runner.start(raw(lab, engine), folder),
                  at_second(lambda: servers.send(signal.SIGSTOP)))  # fmt: skip
    assert without_times(folder) == whole[:2]
    servers.send(signal.SIGCONT)
    check_resumed(runner, folder, whole, {"timeout_seconds": 60.0})


def test_a_server_that_hangs_for_a_while_or_is_slow_is_waited_for(
    lab, runner, servers, whole, tmp_path
):
    def hang():
        servers.send(signal.SIGSTOP)
        threading.Timer(1.0, servers.send, (signal.SIGCONT,)).start()

    folder = tmp_path / "run"
    run = runner.start(raw(lab, servers.begin(seconds=0.05)), folder)
    runner.go(run, at_second(hang))
    assert without_times(folder) == whole


def test_an_update_of_which_half_arrives_is_never_sampled_with(
    lab, runner, servers, whole, tmp_path
):
    folder = tmp_path / "run"
    run = runner.start(raw(lab, servers.begin(dies_at=3)), folder)
    with pytest.raises(UserError, match=r"the server at .*"):
        runner.go(run)
    assert without_times(folder) == whole[:2]  # the third step's weights did not arrive
    check_resumed(runner, folder, whole, servers.begin())
