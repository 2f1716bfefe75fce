"""A small server of Tinker's API over HTTP, with a real model behind it: torch's AdamW trains all
of its weights, and strop's local engine samples. Requests are handled as they arrive."""

import copy
import itertools
import json
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as wire

from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.training.learner import models

KEY = "tml-test"
Answer = tuple[int, str, bytes]  # status, type, body


class Sampler(LocalEngine):
    """The local engine as it is, whatever a test puts in its place elsewhere."""

    start = LocalEngine.start


class Trained:
    """A model under training: weights, moments, gradients since the last step.

    divides: the loss is divided by the sum of the weights, as a server had it.
    """

    divides = False

    def __init__(self, folder: Path) -> None:
        self.model = models.load(str(folder)).model.requires_grad_(True)
        self.adam = torch.optim.AdamW(self.model.parameters())
        self.gradients: list[torch.Tensor] = []  # of each step

    def pass_over(self, request: Any) -> bytes:
        """Forward, and backward where asked for; the log-probabilities of all targets."""
        output = wire.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
        found = []
        with torch.set_grad_enabled(not request.forward_only):
            for datum in request.data:
                ids = [np.frombuffer(c.encoded_text.tokens, np.int32) for c in datum.model_input]
                given = {
                    name: torch.tensor(np.frombuffer(
                        t.dense, np.int64 if t.dtype == wire.DTYPE_INT64 else np.float32
                    ))
                    for name, t in datum.loss_fn_inputs.items()
                }  # fmt: skip
                tokens = torch.tensor(np.concatenate(ids), dtype=torch.int64)[None]
                logq = self.model(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)
                logp = logq.gather(1, given["target_tokens"][:, None]).squeeze(1)
                loss = -(logp * given["weights"]).sum()
                if self.divides:
                    loss = loss / given["weights"].sum().clamp(min=1e-9)
                if not request.forward_only:
                    loss.backward()
                output.metrics["loss:sum"] += float(loss.detach())
                found.append(logp.detach().numpy())
        ends = np.cumsum([0, *(4 * len(each) for each in found)]).astype(np.int64)
        record = output.loss_fn_outputs.add(num_datums=len(found))
        field = record.fields["logprobs"]
        field.data, field.offsets = np.concatenate(found).tobytes(), ends.tobytes()
        field.dtype = wire.DTYPE_FLOAT32
        return output.SerializeToString()

    def step(self, given: dict[str, Any]) -> dict[str, float]:
        (group,) = self.adam.param_groups
        group.update(
            lr=given["learning_rate"], betas=(given["beta1"], given["beta2"]), eps=given["eps"],
            weight_decay=given["weight_decay"],
        )  # fmt: skip
        self.gradients.append(flat(weight.grad for weight in self.model.parameters()))
        most = given["grad_clip_norm"] or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), most)
        self.adam.step()
        self.adam.zero_grad()
        return {"test.server/grad_norm:mean": float(norm)}

    def state(self) -> dict[str, Any]:
        return copy.deepcopy({"model": self.model.state_dict(), "adam": self.adam.state_dict()})

    def take(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])


class Served:
    """The server: `url`, what it was asked for (`calls`) and what it has (`trained`, `saved`).

    refuses: by the name of a call, the status and the words with which it is refused. others: the
    folders of models that are sampled only, by name.
    """

    def __init__(self, folder: Path, name: str, others: Mapping[str, Path] | None = None) -> None:
        self.folder, self.name, self.others = folder, name, others or {}
        self.calls: Counter[str] = Counter()
        self.trained: dict[str, Trained] = {}
        self.saved: dict[str, dict[str, Any]] = {}  # by path
        self.samplers: dict[str, dict[str, Any] | None] = {}  # weights; None: the first ones
        self.refuses: dict[str, tuple[int, str]] = {}
        self.futures: dict[str, Future[Answer]] = {}
        self.drawing: queue.SimpleQueue[tuple[str, dict[str, Any], Future[Answer]]]
        self.drawing = queue.SimpleQueue()
        self.lock, self.number = threading.Lock(), itertools.count()
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                plain = "json" in self.headers.get("content-type", "")
                self.answer(json.loads(body or b"{}") if plain else body)

            def answer(self, given: Any) -> None:
                call = self.path.removeprefix("/api/v1/")
                key = self.headers.get("x-api-key")
                status, kind, body = served.answer(call, given, key)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        class Http(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

        self.http = Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        for work in (self.http.serve_forever, self.draw):
            threading.Thread(target=work, daemon=True).start()

    def __enter__(self) -> "Served":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.http.shutdown()
        self.http.server_close()

    @property
    def newest(self) -> Trained:
        """The model that was begun last."""
        return [*self.trained.values()][-1]

    def answer(self, call: str, given: Any, key: str | None) -> Answer:
        name = call.partition("/")[0]
        if name == "healthz":
            return plain({"status": "ok"})
        if key != KEY:
            return plain({"message": "this key is unknown"}, 401)
        if name in self.refuses:
            status, why = self.refuses[name]
            return plain({"message": why}, status)
        if name == "retrieve_future":
            return self.futures[given["request_id"]].result()
        if isinstance(given, bytes):
            given = wire.ForwardBackwardRequest.FromString(given)
            name = "forward" if given.forward_only else name
        self.calls[name] += 1
        act = getattr(self, f"on_{name}", None)
        return plain({}) if act is None else act(given)

    def later(self, result: Answer | None = None, **more: Any) -> Answer:
        """The promise of an answer, which is there already or comes from `draw`."""
        name = f"future-{next(self.number)}"
        self.futures[name] = Future()
        if result is not None:
            self.futures[name].set_result(result)
        return plain({"request_id": name, **more})

    def on_get_server_capabilities(self, _: Any) -> Answer:
        known = (self.name, *self.others)
        told = [{"model_name": name, "max_context_length": 64} for name in known]
        return plain({"supported_models": told})

    def on_client(self, _: Any) -> Answer:
        return plain({})

    def on_telemetry(self, _: Any) -> Answer:
        return plain({"status": "accepted"})

    def on_sessions(self, _: Any) -> Answer:
        return plain({})

    def on_create_session(self, _: Any) -> Answer:
        return plain({"session_id": f"session-{next(self.number)}"})

    def on_get_info(self, given: Any) -> Answer:
        data = {"model_name": self.name}
        return plain({"model_data": data, "model_id": given["model_id"], "is_lora": True})

    def begin(self, given: Any) -> str:
        name = f"{given['session_id']}:train:{given['model_seq_id']}"
        self.trained[name] = Trained(self.folder)
        return name

    def on_create_model(self, given: Any) -> Answer:
        return self.later(plain({"model_id": self.begin(given)}))

    def on_load_weights(self, given: Any) -> Answer:
        if given["path"] not in self.saved:
            return self.later(plain({"error": f"no {given['path']}", "category": "user"}))
        name = self.begin(given)
        self.trained[name].take(self.saved[given["path"]])
        return self.later(plain({"path": given["path"], "model_id": name}))

    def on_forward_backward(self, given: Any) -> Answer:
        with self.lock:
            found = self.trained[given.model_id].pass_over(given)
        return self.later((200, "application/x-protobuf", found))

    on_forward = on_forward_backward

    def on_optim_step(self, given: Any) -> Answer:
        with self.lock:
            told = self.trained[given["model_id"]].step(given["adam_params"])
        return self.later(plain({"metrics": told}))

    def save(self, given: Any, kind: str) -> str:
        path = f"tinker://{given['model_id']}/{kind}/{given['path']}"
        self.saved[path] = self.trained[given["model_id"]].state()
        return path

    def on_save_weights(self, given: Any) -> Answer:
        return self.later(plain({"path": self.save(given, "weights")}))

    def on_save_weights_for_sampler(self, given: Any) -> Answer:
        if given.get("path"):
            return self.later(plain({"path": self.save(given, "sampler_weights")}))
        weights = self.trained[given["model_id"]].state()["model"]
        return self.later(plain({"sampling_session_id": self.sampler(weights)}))

    def sampler(self, weights: dict[str, Any] | None) -> str:
        name = f"sampler-{next(self.number)}"
        self.samplers[name] = weights
        return name

    def on_create_sampling_session(self, given: Any) -> Answer:
        path, weights = given.get("model_path"), None
        if path:
            weights = self.saved[path]["model"]
        elif (name := given["base_model"]) in self.others:
            weights = models.load(str(self.others[name])).model.state_dict()
        return plain({"sampling_session_id": self.sampler(weights)})

    def on_samplers(self, _: Any) -> Answer:
        return plain({"sampler_id": "any", "base_model": self.name})

    def on_asample(self, given: Any) -> Answer:
        promise = self.later(sample_sequence_ids=[f"sequence-{next(self.number)}"])
        future = self.futures[json.loads(promise[2])["request_id"]]
        self.drawing.put((given["sampling_session_id"], given, future))
        return promise

    # ---- the sampler

    def draw(self) -> None:
        """Answer requests for ever, those together that wait together."""
        loaded = models.load(str(self.folder))
        first = copy.deepcopy(loaded.model.state_dict())
        now, version = "", 0
        engine = Sampler(loaded.model, loaded.tokenizer)
        while True:
            asked = [self.drawing.get()]
            while not self.drawing.empty():
                asked.append(self.drawing.get())
            for session in dict.fromkeys(each[0] for each in asked):
                if session != now:
                    loaded.model.load_state_dict(self.samplers[session] or first)
                    now, version = session, version + 1
                    engine.load_weights(None, version)
                self.drawn(engine, loaded.model, [each for each in asked if each[0] == session])

    def drawn(self, engine: LocalEngine, model: Any, asked: list[Any]) -> None:
        futures = {}
        for _, given, future in asked:
            ids = tuple(t for chunk in given["prompt"]["chunks"] for t in chunk["tokens"])
            params, scored = given["sampling_params"], None
            if given.get("prompt_logprobs"):
                with torch.no_grad():
                    logq = model(torch.tensor([ids])).logits[0].log_softmax(-1)
                scored = logq[:-1].gather(1, torch.tensor(ids)[1:, None]).squeeze(1).numpy()
            stop = params.get("stop") or []
            strings = tuple(each for each in stop if isinstance(each, str))
            request = Request(
                ids, params["max_tokens"], params["temperature"], seed=params.get("seed") or 0,
                stop_ids=() if strings else tuple(stop), stop_strings=strings,
            )  # fmt: skip
            id = next(self.number)
            engine.start(id, request)
            futures[id] = (future, scored)
        rows: dict[int, list[Any]] = {id: [] for id in futures}
        running = set(futures)
        while running:
            for event in engine.poll():
                rows[event.request].append(event)
                running -= {event.request} if event.ended else set()
        for id, (future, scored) in futures.items():
            future.set_result(sampled(rows[id], scored))


def flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """All in one vector, a copy."""
    return torch.cat([t.detach().flatten() for t in tensors if t is not None])


def plain(found: dict[str, Any], status: int = 200) -> Answer:
    return status, "application/json", json.dumps(found).encode()


def sampled(events: list[Any], scored: Any) -> Answer:
    found = wire.SampleResponse()
    ended = events[-1].ended == "stop"
    found.sequences.add(
        stop_reason=wire.STOP_REASON_STOP if ended else wire.STOP_REASON_LENGTH,
        tokens=np.array([t for e in events for t in e.ids], np.int32).tobytes(),
        logprobs=np.array([p for e in events for p in e.logp], np.float32).tobytes(),
    )
    if scored is not None:
        found.prompt_logprobs = np.array([np.nan, *scored], np.float32).tobytes()
    return 200, "application/x-protobuf", found.SerializeToString()
