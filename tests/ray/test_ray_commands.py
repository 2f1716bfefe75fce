"""`--ray` from a shell: trainers as actors, killed processes, what is left over, and the doctor."""

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import _command, forked, launch
from copies import serve, workers_copied
from models import without_times
from typer.testing import CliRunner

from strop.cli.main import app
from strop.cli.train import Job
from strop.cli.train_on_ray import TrainerLost, Trainers
from strop.support.errors import RunStopped, UserError
from strop.training.cluster import connect
from strop.training.record.versions import write_environment
from strop.training.settings import config
from strop.training.settings.sections import RaySettings

STEPS = 6
# Ray's own processes, which check for their raylet once a minute.
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def launch_copying(words: Sequence[str | Path], output: Path, address: Path) -> Any:
    """As `launch`; workers of the Ray that it starts are copied from a process below it."""
    return forked(_copying, [*map(str, words)], output, address)


def _copying(words: list[str], output: Path, address: Path) -> None:
    if os.fork() == 0:
        serve(str(address))
    with workers_copied(address):
        _command(words, output, output, 0, None, {})


def wait_for(condition: Any, process: Any, output: Path, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.is_alive(), output.read_text()
        assert time.monotonic() < end, output.read_text()
        time.sleep(0.02)


def ended(process: Any, output: Path) -> int:
    process.join(300)
    assert process.exitcode is not None, output.read_text()
    return process.exitcode


def trainers(folder: Path) -> list[int]:
    """Processes that hold the run, or train beside the one that does."""
    held = folder / ".lock"
    return [int(held.read_text().split()[1])] if held.exists() and held.read_text() else []


def started_by(process: int) -> list[int]:
    """All processes below one."""
    path = Path(f"/proc/{process}/task/{process}/children")
    below = [int(word) for word in path.read_text().split()] if path.exists() else []
    return [*below, *(each for child in below for each in started_by(child))]


def command(process: int) -> str:
    """What a process does; empty where there is none."""
    path = Path(f"/proc/{process}/cmdline")
    return path.read_bytes().decode(errors="replace") if path.exists() else ""


def engines(process: Any) -> list[int]:
    """Processes of engines below one."""
    return sorted(pid for pid in started_by(process.pid) if "EngineWorker" in command(pid))


def saved(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").glob("step-*")}


def test_trainers_are_actors_and_whoever_is_killed_the_run_goes_on(lab, tmp_path):
    """A trainer is killed: all start again and the engine stays; one is stopped: it is named, and
    all start again; the driver is killed, and all with it; the run goes on, and ends as one
    process's.
    """
    plain, folder, output = tmp_path / "plain", tmp_path / "run", tmp_path / "output"
    words = lab.arguments(f"training.steps={STEPS}", "training.save_every=1")
    assert ended(launch(["train", *words, "--out", plain], output), output) == 0
    ray = ["--ray", "local", "ray.cpus_per_engine=1"]
    ray += ["ray.num_trainers=2", "training.process_timeout_seconds=4"]
    process = launch_copying(["train", *words, *ray, "--out", folder], output, tmp_path / "asked")
    wait_for(lambda: saved(folder), process, output)
    (first,), engine = trainers(folder), engines(process)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: trainers(folder) not in ([], [first]), process, output)
    before = saved(folder)
    wait_for(lambda: saved(folder) - before, process, output)
    (second,) = trainers(folder)
    os.kill(second, signal.SIGSTOP)
    silent = re.compile(
        rf"process 0 of 2 \({second} on .*\) gave no sign of life for 4 s .*; all restart"
    )
    wait_for(lambda: silent.search(output.read_text()), process, output)
    assert len(engine) == 1
    assert engines(process) == engine
    assert re.search(r"a trainer is lost .*; all restart after step [1-5]", output.read_text())
    own = [pid for pid in started_by(process.pid) if not command(pid).startswith(AGENTS)]
    process.kill()
    process.join()
    end = time.monotonic() + 60
    while any(map(command, own)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [*filter(None, map(command, own))]

    process = launch(["train", "--resume", folder, "ray.address="], output)
    assert ended(process, output) == 0, output.read_text()
    assert [line["step"] for line in without_times(folder)] == [*range(1, STEPS + 1)]
    for one, other in zip(without_times(plain), without_times(folder), strict=True):
        finite = {name: value for name, value in one.items() if value is not None}
        assert {name: other[name] for name in finite} == pytest.approx(finite, rel=1e-4, abs=1e-5)


def test_a_run_that_is_told_to_end_while_ray_starts_says_so(lab, tmp_path):
    """The first process of Ray is there, the others are not: it is inside `ray.init`."""
    folder, output = tmp_path / "run", tmp_path / "output"
    words = lab.arguments("--ray", "local", "ray.cpus_per_engine=1", "ray.num_trainers=1")
    process = launch(["train", *words, "--out", folder], output)
    wait_for(
        lambda: any("gcs_server" in command(p) for p in started_by(process.pid)), process, output
    )
    own = [pid for pid in started_by(process.pid) if not command(pid).startswith(AGENTS)]
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process, output) == 130, output.read_text()
    said = "interrupted: strop train was stopped; no run was started: the same command starts one\n"
    assert output.read_text().endswith(said)
    assert not folder.exists()
    end = time.monotonic() + 60
    while any(map(command, own)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [*filter(None, map(command, own))]


def test_workers_of_its_own_making_train_from_a_shell(lab, tmp_path):
    """None is copied here, as in the other tests: they import all that they need themselves."""
    folder, output = tmp_path / "run", tmp_path / "output"
    words = lab.arguments("training.steps=1", "--ray", "local", "ray.cpus_per_engine=1")
    process = launch(["train", *words, "--out", folder], output)
    assert ended(process, output) == 0, output.read_text()
    assert [line["step"] for line in without_times(folder)] == [1]


def test_trainers_that_are_lost_again_and_again_end_the_run(tmp_path):
    """Twice without a checkpoint between them; the first time before there was a run."""
    done: list[Job] = []

    class Losing(Trainers):
        def _hired(self) -> list[Any]:
            return []

        def _trained(self, trainers: Any, job: Job) -> Any:
            done.append(job)
            if len(done) == 2:
                write_environment(tmp_path, [{}])
                (tmp_path / "config.toml").touch()
            if len(done) == 3:
                (tmp_path / "checkpoints" / "step-000003").mkdir(parents=True)
                (tmp_path / "checkpoints" / "step-000003" / "trainer.pt").touch()
            raise TrainerLost("it is gone")

    told: list[str] = []
    job = Job(["seed=1"], {}, None, tmp_path, None, 0, True, 0)
    settings = config.make({"ray": {"restarts": 2}})
    with pytest.raises(RunStopped, match=rf"\(it is gone\): resume with: .* --resume {tmp_path}"):
        Losing(None, settings, None, None, tmp_path).done(job, told.append)
    assert done == [job, job, *[job.again(tmp_path)] * 3]


def test_the_doctor_asks_every_machine(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["doctor", "--ray", cluster.address, "--model", "tiny", "--json"]
    found = CliRunner().invoke(app, [*words, "ray.num_engines=2", "ray.cpus_per_engine=1"])
    assert found.exit_code == 0, found.output
    report = json.loads(found.output[found.output.index("{") :])
    status = {each["question"]: each["status"] for each in report["findings"]}
    assert len(report["cluster"]["nodes"]) == 2
    assert len(report["cluster"]["broadcast"]["seconds"]) == 2
    speed = "How fast do weights reach the machines?"
    assert {name for name, value in status.items() if value != "ok"} <= {
        speed,
        "Does training fit in memory?",
    }
    assert len(status) == 7
    assert not list(tmp_path.iterdir())
    found = CliRunner().invoke(app, [*words, "ray.num_engines=9", "ray.cpus_per_engine=1"])
    assert found.exit_code == 1
    assert "9 engines and 0 trainers need 9 CPUs" in found.output


def test_an_address_where_nothing_is_is_refused(lab, tmp_path):
    output = tmp_path / "output"
    process = launch(["train", *lab.arguments(), "--ray", "nowhere:1", "--out", tmp_path], output)
    assert ended(process, output) == 2
    assert "--ray nowhere:1: " in output.read_text()


@pytest.mark.parametrize("host", ["a..b", 64 * "a"])
def test_an_address_that_no_host_can_have_is_refused(host):
    with pytest.raises(UserError, match=f"--ray {host}:6379: nothing answers there"):
        connect._reach(f"{host}:6379")


def test_a_node_that_does_not_start_in_time_is_no_traceback(monkeypatch):
    def too_slow(**settings):
        raise Exception("The current node timed out during startup.")

    ray = SimpleNamespace(init=too_slow, is_initialized=lambda: False)
    monkeypatch.setattr(connect, "library", lambda: ray)
    with pytest.raises(UserError, match="--ray local: The current node timed out during startup"):
        connect.connect(RaySettings(num_engines=1, address="local"))


def test_a_second_address_in_one_process_is_refused(monkeypatch):
    """The cluster's own address is taken too, and a cluster of the user's as it is."""
    ray = SimpleNamespace(
        init=lambda **_: None,
        is_initialized=lambda: bool(connect._CONNECTED),
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"),
    )
    monkeypatch.setattr(connect, "library", lambda: ray)
    monkeypatch.setattr(connect, "_CONNECTED", {})
    for address in ("auto", "auto", "10.0.0.1:6379"):
        connect.connect(RaySettings(num_engines=1, address=address))
    with pytest.raises(UserError, match=r"^--ray local: .* at auto: give that .* ray.shutdown"):
        connect.connect(RaySettings(num_engines=1, address="local"))
    monkeypatch.setattr(connect, "_CONNECTED", {"10.0.0.2:6379": "10.0.0.2:6379"})
    connect.connect(RaySettings(num_engines=1, address="local"))
