"""`strop inspect`: a file, or a server that only this machine can reach."""

import http.client
import threading

import pytest

from strop.inspection.page import open_server


@pytest.fixture
def recorded(strop, lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect") / "run"
    result = strop(
        "train", "grpo", *lab.arguments("--out", str(folder), "training.steps=2"), "--quiet"
    )
    assert result.code == 0, result.err
    return folder


def test_a_page_is_written_and_mistakes_are_told(strop, recorded, tmp_path):
    result = strop("inspect", recorded, "--out", tmp_path / "page.html")
    assert (result.code, result.out) == (0, f"wrote {tmp_path / 'page.html'}, step 2\n")
    assert "step 2</title>" in (tmp_path / "page.html").read_text()
    result = strop("inspect", recorded, "--step", "1", "--out", tmp_path / "page.html")
    assert result.out.endswith("step 1\n")
    for words, told in (
        ((recorded, "--step", "7"), "has kept no tokens of step 7; there are 1, 2"),
        ((tmp_path / "nothing",), "is not a run: it does not exist"),
        ((recorded, "--port", "99999"), "'--port': Input should be less than"),
    ):
        result = strop("inspect", *words)
        assert result.code == 2
        assert told in result.err


def test_the_server_shows_each_step(recorded):
    def get(path):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("GET", f"/{server.token}/{path}")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    with open_server(recorded, 1) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert "step 1</title>" in get("")[1]
            assert "step 2</title>" in get("?step=2")[1]
            assert get("?step=5") == (
                404, f"{recorded} has kept no tokens of step 5; there are 1, 2",
            )  # fmt: skip
            assert get("?step=x")[0] == 404
            assert get("config.toml") == (404, "there is one page")
        finally:
            server.shutdown()
