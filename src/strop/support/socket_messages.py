"""Messages over a socket: eight bytes of length, then the content."""

import socket
import struct
import time

LAST_LOOK_SECONDS = 0.1  # at what is there when the time is over
_LENGTH = struct.Struct("!Q")


def send(channel: socket.socket, content: bytes) -> None:
    """Write one message. Raises OSError when the other end is gone or does not read in time."""
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket, deadline: float | None = None) -> bytes:
    """Read one message. Raises EOFError when the other end is gone, TimeoutError if it is late.

    deadline: of the whole message, by `time.monotonic`; what has come by then is still read.
    """
    if deadline is not None:
        deadline = max(deadline, time.monotonic() + LAST_LOOK_SECONDS)
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, deadline))
    return _exactly(channel, length, deadline)


def _exactly(channel: socket.socket, length: int, deadline: float | None) -> bytes:
    content = bytearray()
    while len(content) < length:
        if deadline is not None:
            channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            piece = channel.recv(min(length - len(content), 1 << 20))
        except ConnectionError as error:
            raise EOFError("the other end is gone") from error
        if not piece:
            raise EOFError("the other end is gone")
        content += piece
        if deadline is not None and time.monotonic() > deadline and len(content) < length:
            raise TimeoutError("the message is late")
    return bytes(content)
