"""A server of the package `mcp` over standard streams, whose tools behave and misbehave."""

import os
import subprocess
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("misbehaving")
kept: list[str] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def remember(text: str) -> str:
    """Keeps a text and gives all of them."""
    kept.append(text)
    return ",".join(kept)


@server.tool()
def wait(seconds: int) -> str:
    """Says how long to wait."""
    return f"wait {seconds} s"


@server.tool()
def hang() -> str:
    """Never answers."""
    while True:
        time.sleep(1)


@server.tool()
def crash() -> str:
    """Ends the server."""
    print("it is over", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def garbage() -> str:
    """Writes a line that is no message, and answers."""
    os.write(1, b"{this is no message\n")
    return "after garbage"


@server.tool()
def no_answer_but_garbage() -> str:
    """Writes a message of the wrong kind for an answer, and never the right one."""
    os.write(1, b'{"jsonrpc": "2.0", "id": 999, "result": {"content": 7}}\n')
    time.sleep(1000)
    return ""


@server.tool()
def child() -> int:
    """Starts a process and gives its number."""
    null = subprocess.DEVNULL
    return subprocess.Popen(["sleep", "1000"], stdin=null, stdout=null, stderr=null).pid


if __name__ == "__main__":
    server.run()
