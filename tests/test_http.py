"""Calls that are limited in time as a whole and that others may break off."""

import http.server
import socket
import threading
import time
import urllib.request

import pytest

from strop._http import Call, urlopen


@pytest.fixture
def server():
    """One that answers `/` at once and nothing else ever."""
    go_on = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/":
                go_on.wait(20)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *arguments):
            """Nothing to print."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.handle_error = lambda *arguments: None  # the caller is gone
        threading.Thread(target=found.serve_forever, args=(0.01,)).start()
        yield found.server_address[1]
        go_on.set()
        found.shutdown()


def ask(url, timeout_seconds, call=None):
    with urlopen(urllib.request.Request(url), timeout_seconds, call) as response:
        return response.read()


def test_a_name_is_looked_up_within_the_limit(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: over.wait(20) and [])
    begun = time.monotonic()
    with pytest.raises(urllib.error.URLError) as raised:
        ask("http://slow.example/", 0.2)
    assert isinstance(raised.value.reason, TimeoutError)
    assert time.monotonic() - begun < 5
    over.set()


def test_a_name_that_leads_nowhere_is_an_error(monkeypatch):
    def unknown(*arguments):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(urllib.error.URLError, match="not known"):
        ask("http://nobody.example/", 5)


def test_the_next_address_is_tried(server, monkeypatch):
    with socket.socket() as closed:  # nobody listens there
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()
    whole = socket.getaddrinfo

    def both(host, *arguments):
        if host != "two.example":
            return whole(host, *arguments)
        return [(socket.AF_INET, 1, 6, "", place) for place in (nobody, ("127.0.0.1", server))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert ask(f"http://two.example:{server}/", 20) == b"ok"


def test_a_call_is_broken_off(server):
    call = Call()
    threading.Timer(0.1, call.cancel).start()
    begun = time.monotonic()
    with pytest.raises(OSError, match=r".*"):
        ask(f"http://127.0.0.1:{server}/never", 20, call)
    assert time.monotonic() - begun < 10
    with pytest.raises(OSError, match="broken off"):  # before it has begun
        ask(f"http://127.0.0.1:{server}/", 20, call)
    call = Call()
    assert ask(f"http://127.0.0.1:{server}/", 20, call) == b"ok"
    call.cancel()  # too late
