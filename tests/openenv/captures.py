"""OpenEnv's capture servers, started for agents of other processes: `python captures.py PORT`."""

import socket
import sys

import uvicorn
from fastapi import FastAPI
from openenv.core.harness.capture.contract import to_training_trace
from openenv.core.harness.capture.export import export_session
from openenv.core.harness.capture.runner import CaptureServer

app = FastAPI()
opened = {}


def port_of_capture(llm_url, api_key):
    """Where a new capture server answers. It takes the engine for one that tells tokens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    capture = CaptureServer(
        llm_url=llm_url, model="policy", port=port, api_key=api_key, capture_level="tokens",
        max_output_tokens=0,
    )  # fmt: skip
    capture.start()
    opened[port] = capture
    return port


@app.get("/health")
def health():
    return {}


@app.post("/captures")
def capture(engine: dict):
    return port_of_capture(engine["llm_url"], engine["api_key"])


@app.get("/captures/shared")
def shared():
    """One without an engine, for sessions that name theirs."""
    return port_of_shared


@app.get("/traces/{port}/{session_id}")
def trace(port: int, session_id: str):
    session = opened[port].registry.get(session_id)
    level = session.capture_level or opened[port].capture_level
    document = export_session(session, capture_level=level)
    return to_training_trace(session.graph, document).model_dump()


if __name__ == "__main__":
    port_of_shared = port_of_capture("", None)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
