"""Messages over a socket: eight bytes of length, then the content."""

import socket
import struct

_LENGTH = struct.Struct("!Q")


def send(channel: socket.socket, content: bytes) -> None:
    """Write one message. Raises OSError when the other end is gone or does not read in time."""
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket) -> bytes:
    """Read one message. Raises EOFError when the other end is gone, TimeoutError if it is late."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    return _exactly(channel, length)


def _exactly(channel: socket.socket, length: int) -> bytes:
    content = bytearray()
    while len(content) < length:
        try:
            piece = channel.recv(min(length - len(content), 1 << 20))
        except ConnectionError as error:
            raise EOFError("the other end is gone") from error
        if not piece:
            raise EOFError("the other end is gone")
        content += piece
    return bytes(content)
