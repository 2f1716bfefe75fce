"""A server with OpenAI's completions protocol, as in vLLM, over an engine of this process."""

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors.torch import load_file

from fakes.engine import sample
from fakes.loopback import Asked, Reply, loopback
from strop.engines.base import Engine, Event, Request
from strop.engines.rules import MinP, TopK, TopP

# A function that replaces the engine's answer to a body by a status and a text; None: it does not.
Instead = Callable[[dict[str, Any]], "tuple[int, str] | None"]


def worker(served: "Served", method: str, folder: str = "", version: int = 0) -> dict[str, Any]:
    """What a worker answers, as the one in vllm_side/ does."""
    if method == "strop_load_weights":
        if not (Path(folder) / "config.json").is_file():
            return {"error": f"it sees no folder {folder}"}
        served.engine.load_weights(load_file(f"{folder}/model.safetensors"), version)
    return {"version": served.engine.version}


@dataclass
class Served:
    """Where the server listens, how it is set up, and what it was asked."""

    url: str
    engine: Engine
    vocab_size: int
    told: str = "model"  # what its log-probabilities are of: "model", "tempered" or "drawn"
    models: Mapping[str, int | None] = field(default_factory=lambda: {"m": 64})
    ends: tuple[int, ...] = ()  # tokens at which it ends whatever is asked
    knows_stops: bool = True
    returns_ids: bool = True
    instead: Instead = lambda body: None
    worker: Callable[..., Any] | None = None  # of a server that takes weights, as vLLM does
    adapters: dict[str, Any] | None = None  # of a server that takes them
    going: threading.Event = field(default_factory=threading.Event)  # not paused
    orders: list[str] = field(default_factory=list)  # but for completions
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    at_once: list[int] = field(default_factory=list)  # calls under way when one came
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Bodies but for those with which an engine begins."""
        return [body for body in self.bodies if body.get("logprobs") != 1]


@contextmanager
def serve(engine: Engine, vocab_size: int, **settings: Any) -> Iterator[Served]:
    """The server, until the end of the block."""

    def reply(asked: Asked) -> Reply:
        if asked.method == "GET":
            assert asked.path == "/v1/models"
            served.headers.append(dict(asked.headers))
            data = [{"id": name, "max_model_len": size} for name, size in served.models.items()]
            return 200, json.dumps({"object": "list", "data": data}), {}
        body = json.loads(asked.body)
        if asked.path == "/v1/completions":
            return *_answered(served, body, dict(asked.headers)), {}
        return *obey(served, asked.path, body), {}

    with loopback(reply, keeps=False) as server:
        served = Served(server.url, engine, vocab_size, **settings)
        served.going.set()
        yield served


def _answered(served: Served, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, str]:
    """What a call for completions gets, once the server is not paused."""
    with served.lock:
        served.bodies.append(body)
        served.headers.append(headers)
        served.running += 1
        served.at_once.append(served.running)
    said = served.instead(body)
    if said is None:
        served.going.wait(20)
    with served.lock:
        said = said or (200, json.dumps(complete(served, body)))
        served.running -= 1
    return said


def obey(served: Served, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """What vLLM answers to calls that change something."""
    if served.worker is None:
        return 404, '{"detail": "Not Found"}'
    served.orders.append(body.get("method", urlsplit(path).path))
    if path == "/pause?mode=abort":
        served.going.clear()
    elif path == "/resume":
        served.going.set()
    elif path.endswith("_lora_adapter"):
        if served.adapters is None:
            return 404, '{"detail": "Not Found"}'
        if path.startswith("/v1/unload"):
            del served.adapters[body["lora_name"]]
        else:
            assert not served.going.is_set(), "nothing is drawn while an adapter is loaded"
            place = Path(body["lora_path"]) / "adapter_model.safetensors"
            served.adapters[body["lora_name"]] = load_file(place)
        return 200, "Success: it is no JSON"
    else:
        assert path == "/collective_rpc"
        with served.lock:
            found = served.worker(served, body["method"], **body["kwargs"])
        return 200, json.dumps({"results": [found] * 2})
    return 200, "{}"


def complete(served: Served, body: dict[str, Any]) -> dict[str, Any]:
    """The engine's answer to a body."""
    rules: list[Any] = [MinP(body["min_p"])] if body["min_p"] else []
    rules += [TopK(body["top_k"])] if body["top_k"] > 0 else []
    rules += [TopP(body["top_p"])] if body["top_p"] < 1 else []
    stops = tuple(body.get("stop_token_ids", ())) if served.knows_stops else ()
    request = Request(
        tuple(body["prompt"]), body["max_tokens"], body["temperature"], tuple(rules),
        num_top=served.vocab_size, stop_ids=stops + served.ends,
        stop_strings=tuple(body.get("stop", ())) if served.knows_stops else (),
        seed=body.get("seed", 0),
    )  # fmt: skip
    (finished,) = sample(served.engine, [request])
    ids = [token for event in finished.events for token in event.ids]
    choice: dict[str, Any] = {
        "index": 0, "text": "", "finish_reason": finished.events[-1].ended,
        "logprobs": None, "token_ids": None, "prompt_token_ids": None,
    }  # fmt: skip
    if body.get("return_token_ids") and served.returns_ids:
        choice |= {"token_ids": ids, "prompt_token_ids": body["prompt"]}
    if body.get("logprobs") is not None:
        rows = [row for event in finished.events for row in told(served, request, event)]
        number = body["logprobs"]
        choice["logprobs"] = {
            "token_logprobs": [row[id] for row, id in zip(rows, ids, strict=True)],
            "top_logprobs": [dict(enumerate(sorted(row)[-number:] if number else [row[id]]))
                             for row, id in zip(rows, ids, strict=True)],
        }  # fmt: skip
    return {"object": "text_completion", "model": body["model"], "choices": [choice]}


def told(served: Served, request: Request, event: Event) -> list[list[float]]:
    """Of each new token the log-probabilities of the whole vocabulary, as this server tells them.

    Worked out from the model's at temperature 1, which the engine tells for every token.
    """
    if not event.ids:
        return []
    rows = [[top[id] for id in range(served.vocab_size)] for top in event.top]
    logits = torch.tensor(rows, dtype=torch.float64)
    if served.told != "model":
        logits = logits / (request.temperature or 1.0)
    if served.told == "drawn" and request.temperature:
        for rule in request.rules:
            logits = rule(logits)
    values = logits.log_softmax(-1).clamp(min=-9999.0).tolist()
    assert all(map(math.isfinite, values[0]))
    return values


class Letters:
    """A tokenizer: a letter for each token."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def decode(self, ids) -> str:
        return "".join(chr(97 + id) for id in ids)
