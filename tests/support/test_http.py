"""Calls with a limit for their total time, which others may cancel, over kept connections."""

import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes.loopback import loopback

from strop.diagnosis.whole import KEY, of_an_endpoint
from strop.support.errors import UserError
from strop.support.http import Call, Failed, Http, Retries, TooLong, _words, key_of


@pytest.fixture
def server():
    """One that answers `/` at once, `/long` at length and nothing else ever; connections count."""
    go_on = threading.Event()

    def answer(asked):
        if asked.path not in ("/", "/long"):
            go_on.wait(20)
        return 200, b"ok" if asked.path == "/" else b"o" * 5000, {}

    with loopback(answer) as found:
        yield found
        go_on.set()


@pytest.fixture
def asked():
    """`asked(url, timeout_seconds, call)`: what a server says."""
    asking = Http(20.0)
    yield lambda url, limit=20.0, call=None: asking.send("GET", url, None, call, limit).content
    asking.close()


def place_of(server):
    return f"http://127.0.0.1:{server.server_address[1]}/"


def test_a_name_is_looked_up_within_the_limit(asked, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: over.wait(20) and [])
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="timed out"):
        asked("http://slow.example/", 0.2)
    assert time.monotonic() - started < 5
    over.set()


def test_a_name_that_leads_nowhere_is_an_error(asked, monkeypatch):
    def unknown(*arguments):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectionError, match="not known"):
        asked("http://nobody.example/", 5)


def test_the_next_address_is_tried(server, asked, monkeypatch):
    with socket.socket() as closed:  # nobody listens there
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()
    whole = socket.getaddrinfo

    def both(host, *arguments):
        if host not in ("two.example", b"two.example"):
            return whole(host, *arguments)
        places = (nobody, server.server_address)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert asked(f"http://two.example:{server.server_address[1]}/") == b"ok"


def test_servers_of_this_machine_are_called_without_a_proxy(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # nobody listens there
    http, port = Http(5.0), server.server_address[1]
    for host in ("127.0.0.1", "localhost"):
        assert http.send("GET", f"http://{host}:{port}/").content == b"ok"
    with pytest.raises(ConnectionError):
        http.send("GET", "http://elsewhere.example/")
    http.close()


def test_a_call_is_broken_off(server, asked):
    call = Call()
    threading.Timer(0.1, call.cancel).start()
    started = time.monotonic()
    with pytest.raises(OSError, match="broken off"):
        asked(f"{place_of(server)}never", 20, call)
    assert time.monotonic() - started < 10
    with pytest.raises(OSError, match="broken off"):  # before it has begun
        asked(place_of(server), 20, call)
    call = Call()
    assert asked(place_of(server), 20, call) == b"ok"
    call.cancel()  # too late


def test_connections_are_kept_and_no_more_than_allowed(server):
    asking = Http(20.0, most_at_once=3)
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _: asking.send("GET", place_of(server)).content, range(40)))
    asking.close()
    assert said == [b"ok"] * 40
    assert 1 <= len(server.connections) <= 3


def test_an_answer_that_is_too_long_is_left(server):
    asking = Http(20.0, most_bytes=4999)
    with pytest.raises(TooLong, match="more than 4999 bytes"):
        asking.send("GET", f"{place_of(server)}long")
    assert asking.send("GET", place_of(server)).content == b"ok"
    asking.close()


def test_no_place_at_all_is_an_error(asked):
    for url in ("", "x", "ftp://x/", "http://", "http://[::1/", "http://localhost:65536/"):
        with pytest.raises(OSError, match=r"\w+: "):
            asked(url)


@pytest.mark.parametrize(
    ("after", "waits"),
    [
        ("", [1, 2, 4]),  # doubles
        ("3", [3, 3, 4]),  # unless the server asks for more
        ("1e9", [1, 2, 4]),  # seconds are digits
        ("99999", [60, 60, 60]),  # nobody waits longer
    ],
)
def test_the_waits_between_tries(after, waits, monkeypatch):
    slept, tried = [], []

    def fail():
        tried.append(1)
        raise Failed("busy", again=True, after=after)

    with pytest.raises(Failed, match="busy"):
        Retries(4, 1.0)(fail, slept.append)
    assert len(tried) == 4
    assert all(0.75 <= s / wait <= 1.25 for s, wait in zip(slept, waits, strict=True))
    assert sum(slept) <= Retries(4).longest_wait
    assert after != "3" or min(slept[:2]) >= 3  # never before the server's own time


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (Failed("no such place"), 1),
        (TooLong("5000 bytes"), 1),
        (OSError("the disk is full"), 1),
        (Failed("busy", again=True), 4),
        (TimeoutError("timed out"), 4),
    ],
)
def test_what_no_try_mends_is_tried_once(error, tries):
    tried = []

    def fail():
        tried.append(1)
        raise error

    with pytest.raises(type(error), match=str(error)):
        Retries(4)(fail, lambda wait: None)
    assert len(tried) == tries


def test_an_answer_is_asked_for_judged_and_read():
    replies, asked = [], []

    def answer(request):
        asked.append((request.method, request.body))
        return replies.pop(0)

    def read(said):
        if said == b"odd":
            raise Failed("an odd answer", again=True)
        return said.decode()

    with loopback(answer) as served:
        http, url = Http(20.0), place_of(served)
        retries = Retries(3, 0.001)
        replies += [(503, b"soon", {}), (200, b"odd", {}), (201, b"well", {})]
        assert http.ask(url, {"a": 1}, read=read, retries=retries) == "well"
        assert asked == [("POST", b'{"a": 1}')] * 3
        replies += [(200, b"there", {})]
        assert http.ask(url, read=read) == "there"
        assert asked[3:] == [("GET", b"")]
        for reply, why in [
            ((503, b"soon", {}), "HTTP 503: soon"),
            ((400, b'{"error": {"message": "too\\n long"}}', {}), "HTTP 400: too long"),
            ((400, b"[" * 100_000, {}), r"HTTP 400: \[\[\["),
            ((302, b"", {"Location": "http://x"}), "HTTP 302: a redirect to http://x, .* mend"),
        ]:
            replies += [reply]
            with pytest.raises(Failed, match=why):
                http.ask(url, {}, read=read)
        http.close()
        with pytest.raises(TimeoutError, match="timed out"):
            Http(1e-6).ask(url, {}, read=read)


def test_a_certificate_that_is_not_trusted_is_named():
    """OpenSSL's number of an error is none of the system's."""
    broken = ConnectionError("it broke")
    broken.__cause__ = ssl.SSLCertVerificationError(1, "certificate verify failed")
    assert _words(broken) == "SSLCertVerificationError: certificate verify failed"


@pytest.mark.parametrize("key", ["sk-secret ", "sk-secret\n", "sk-secret\u00e9"])
def test_no_error_tells_a_key(key, server, monkeypatch):
    monkeypatch.setenv(KEY, key)
    for reads in (lambda: key_of(KEY, "api_key_env"), lambda: of_an_endpoint(place_of(server))):
        with pytest.raises(UserError, match="the key in OPENAI_API_KEY has a char") as refused:
            reads()
        assert "secret" not in str(refused.value)
