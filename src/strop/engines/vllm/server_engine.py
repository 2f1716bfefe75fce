"""The completions engine over a vLLM server that takes the weights that are trained.

The weights go through a folder: written whole, loaded by vLLM's workers (inside/), deleted. So they
need neither a GPU of this process nor a process group with the server. If the model has adapters,
the base is sent once, and then only the adapters, each version under a new name. strop starts the
server itself, unless it is given the url of a running one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor

from strop.engines import weights_folder
from strop.engines.base import ADAPTERS, Engine, Request, Rule
from strop.engines.completions import CompletionsEngine, CompletionsSettings, PendingCall
from strop.engines.completions_client import Client
from strop.engines.local.causal import load_state
from strop.engines.rules import SharedRule
from strop.engines.vllm import server as vllm_server
from strop.engines.vllm.server import Server
from strop.engines.vllm.settings import PROCESSORS, VllmOptions, adapter_options
from strop.engines.weights_folder import WeightsFolder, adapters_of, rank_of
from strop.support.adapted import BASE, routes_of
from strop.support.errors import UserError
from strop.support.http import Failed, Retries

ANSWER_SECONDS = 2.0  # for aborted calls to return with their tokens
PLACE = "give engine.folder a place that this process and the server see"
# A server closes idle connections, perhaps at the moment when one is used.
ORDERS = Retries(tries=3, first_wait_seconds=0.2)
# Settings with which strop starts a server.
OF_A_START = (
    "python", "tensor_parallel_size", "start_seconds", "dtype", "gpu_memory_utilization", "args",
)  # fmt: skip
ASKED = "strop_rules"  # the argument of a request that `strop_processors.py` reads
NOT_READY = (
    "to give it weights, set VLLM_SERVER_DEV_MODE=1 and PYTHONPATH={} and start vLLM with "
    "--worker-extension-cls {} (0.32 or later)"
)


class VllmSettings(VllmOptions, CompletionsSettings):
    """A vLLM server: one that strop starts, or one that runs."""

    url: str = Field(default="", description="the server, without /v1; empty: strop starts it")
    python: str = Field(
        default="", description="Python of an environment that has vLLM; empty: this one"
    )
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs that share the model")
    start_seconds: float = Field(default=600.0, gt=0, description="longest wait for its start")
    folder: str = Field(
        default="",
        description="folder for handing over weights, which server and strop both see; empty: in "
        "memory if there is room, else the system's temporary folder",
    )

    @field_validator("url")
    @classmethod
    def _is_a_place(cls, url: str) -> str:
        return super()._is_a_place(url) if url else ""

    def open(self, model: Any, tokenizer: Any, *, num_slots: int, context_length: int) -> Engine:
        """Open the engine. Raises UserError where vLLM is missing or does not start."""
        if self.url:
            self._check_given_server()
        else:
            vllm_server.check_python(self.python or sys.executable)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        folder, server = WeightsFolder(size, PLACE, self.folder), None
        try:
            if not self.url:
                server = self._start(model, tokenizer, folder)
            url = self.url if server is None else server.url
            client, longest = self.meet(url, tokenizer, context_length)
            engine = VllmEngine(client, tokenizer, self.num_parallel, longest)
            engine.follow(model, folder, server)
        except BaseException as error:
            if server is not None:
                server.close(keep_log=isinstance(error, UserError))
            folder.close()
            raise
        return engine

    def _check_given_server(self) -> None:
        """Raise UserError for settings of a start, where the server runs already."""
        fields = type(self).model_fields
        for name in OF_A_START:
            if getattr(self, name) != fields[name].default:
                raise UserError(
                    f"engine.{name} is for a server that strop starts, and engine.url names one "
                    f"that runs: start it with that option, and leave engine.{name} out"
                )

    def client(self, url: str) -> Client:
        """A client of the server; resumes it, because a killed run may have left it paused."""
        found = super().client(url)
        with contextlib.suppress(Failed):  # if it takes no weights or is gone, a later call fails
            found.call("/resume", {})
        return found

    def _start(self, model: Any, tokenizer: Any, folder: WeightsFolder) -> Server:
        """Start a server with the model's current weights and wait until it answers. Raises
        UserError.
        """
        start = weights_folder.write(model, folder, "model", base=True)
        tokenizer.save_pretrained(start)
        server = Server(self.python or sys.executable, folder.path, start, self._options(model))
        try:
            server.wait(self.start_seconds)
        except BaseException as error:
            server.close(keep_log=isinstance(error, UserError))
            raise
        for path in start.glob("*.safetensors"):
            path.unlink()
        return server

    def _options(self, model: Any) -> list[str]:
        """Options of `vllm serve`. It accepts no logits processors together with speculation."""
        rules = [] if "--spec" in self.args else [PROCESSORS, vllm_server.RULES]
        adapters = adapter_options(model) if adapters_of(model) else []
        return self.options(
            model,
            "--tensor-parallel-size", str(self.tensor_parallel_size),
            "--logprobs-mode", "processed_logprobs",  # known at any temperature
            "--worker-extension-cls", vllm_server.WORKER,
            *rules, *adapters,
        )  # fmt: skip


class VllmEngine(CompletionsEngine):
    """Samples by calls of /v1/completions, with the weights of a model of this process.

    New weights abort the running calls: they return with the tokens so far, which are of the old
    weights, and are continued with the new ones. In between nothing is sampled: the server is
    paused, its prefix cache empty. It resumes once every worker has answered with the version;
    where one fails, it stays paused, and no further request is sent.
    """

    model: Any
    folder: WeightsFolder
    server: Server | None = None  # where strop started it
    knows_rules = False  # whether its workers have the rules of `strop_rules`
    takes_adapters = False  # whether adapters are sent as adapters
    names: Mapping[str, str] = {}  # the server's name of the newest version of each adapter
    num_written = 0  # times that adapters were written; a version may be handed over twice

    def follow(self, model: Any, folder: WeightsFolder, server: Server | None) -> None:
        """Sample with the weights of `model`, handed over in `folder`. Raises UserError."""
        self.model, self.folder, self.server = model, folder, server
        self.capabilities |= {"weights"}
        try:
            found = self._order("strop_weights")  # before a server that takes none is paused
        except Failed as failed:
            how = NOT_READY.format(vllm_server.SIDE, vllm_server.WORKER)
            raise UserError(f"the server at {self.client.url}: {failed}; {how}") from failed
        self.knows_rules = all(each.get("rules") for each in found)
        rank = rank_of(model)
        self.takes_adapters = rank > 0 and all(each.get("rank", 0) >= rank for each in found)
        if self.takes_adapters and routes_of(model) is not None:
            self.capabilities |= {ADAPTERS}
        elif rank and not self.takes_adapters:
            self.notes = (
                f"the server at {self.client.url} gets whole weights with adapters merged in: it "
                f"was not started with {' '.join(adapter_options(model))}",
            )
        if self.takes_adapters and server is None:  # else it was started with it
            self._load(self.version, base=True)
        if rank or server is None:  # a server of strop's starts without adapters
            self.load_weights(None, self.version)

    def load_weights(self, state: Mapping[str, Tensor] | None, version: int) -> None:
        """Sample with other weights from the next token on; see Engine.load_weights.

        state: put into the model first. Raises UserError where the server does not take them.
        """
        if state is not None:
            load_state(self.model, state)
        self._load(version, base=False)

    def close(self) -> None:
        """End the threads, and the server if strop started it."""
        if self.server is None:
            self._unload(self.names.values())
        super().close()
        if self.server is not None:
            self.server.close()
        self.folder.close()

    # ---- implementation

    def _load(self, version: int, base: bool) -> None:
        """Give the server the model's current weights: its adapters, or all weights; base: all
        weights without adapters.
        """
        place = self.folder.path / f"version-{version}"
        as_adapters = self.takes_adapters and not base
        try:
            if as_adapters:
                places = self._write_adapters()
            else:
                weights_folder.write(self.model, self.folder, place.name, base)
            with self.gate.shut():
                self._break_off()
                if as_adapters:
                    self._hand_over_adapters(places)
                else:
                    self._hand_over(place, version)
                self.version = version
                self._tell("/resume", {})
        except Failed as failed:
            raise UserError(self._why(f"the server at {self.client.url}: {failed}")) from failed
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _write_adapters(self) -> dict[str, Path]:
        """Write each adapter into the folder, under a name that was never used, by no other run."""
        self.num_written += 1
        end = f"{self.folder.path.name.rpartition('-')[2]}-{self.num_written}"
        return {
            name: weights_folder.write_adapter(self.model, self.folder, name, f"{name}-{end}")
            for name in adapters_of(self.model)
        }

    def _hand_over_adapters(self, places: Mapping[str, Path]) -> None:
        """Have every worker load the adapters, under new names, and then unload the earlier ones.
        Files stay as long as the server may reread them. Raises Failed.
        """
        for place in places.values():
            asked = {"lora_name": place.name, "lora_path": str(place)}
            try:
                self._tell("/v1/load_lora_adapter", asked, as_json=False)
            except Failed as failed:
                if "already been loaded" not in str(failed):  # an order that was given twice
                    raise Failed(
                        f"{failed}: start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and give "
                        "engine.folder a place that it sees"
                    ) from failed
        before, self.names = self.names, {name: place.name for name, place in places.items()}
        self._unload(set(before.values()) - set(self.names.values()))

    def _unload(self, labels: Iterable[str]) -> None:
        """Have the server unload adapters, unless it already has."""
        for label in labels:
            shutil.rmtree(self.folder.path / label, ignore_errors=True)
            with contextlib.suppress(Failed):
                self.client.call("/v1/unload_lora_adapter", {"lora_name": label}, as_json=False)

    def _model_of(self, request: Request) -> dict[str, Any]:
        if not self.names:
            return {}
        first = next(name for name in self.names if name != BASE)
        return {"model": self.names[request.weights or first]}

    def _check(self, request: Request) -> None:
        routes = routes_of(self.model)
        if request.weights and routes is not None:
            routes.check(request.weights)
        super()._check(request)

    def _options(self, request: Request) -> dict[str, Any]:
        """The options for sampling and ends. Rules that vLLM has no option for are applied by
        strop's logits processor; raises UserError for a rule that it does not know.
        """
        try:
            return super()._options(request)
        except UserError as error:
            if not self.knows_rules:
                how = f"{PROCESSORS} {vllm_server.RULES}, without speculation"
                raise UserError(f"{error}, or have the server started with {how}") from error
        asked = []
        for rule in request.rules:
            if not isinstance(rule, SharedRule):
                raise UserError(
                    f"a vLLM server cannot apply {rule!r}, which it does not know: take "
                    "engine.kind=local or vllm_here, or leave the rule out"
                )
            asked.append((rule.function, vars(rule)))
        _check_rules(request.rules, self.model.get_input_embeddings().num_embeddings)
        temperature = request.temperature
        return {
            **super()._options(replace(request, rules=(), temperature=float(temperature > 0))),
            "vllm_xargs": {ASKED: json.dumps([temperature, asked])},
        }

    def _break_off(self) -> None:
        """Pause the server and take the answers of the aborted calls."""
        self._tell("/pause?mode=abort", {})
        if not self.gate.empty(ANSWER_SECONDS):  # calls that reached it after the pause
            for row in self.pending.values():
                row.call.cancel()
            if not self.gate.empty(self.client.timeout_seconds):
                raise Failed("aborted calls do not end")
        while not self.answers.empty():
            self._take(*self.answers.get())

    def _hand_over(self, place: Path, version: int) -> None:
        """Have every worker load the weights. Raises Failed unless all answer with the version."""
        found = self._order("strop_load_weights", folder=str(place), version=version)
        if all("error" in each for each in found):  # nothing has changed
            self._tell("/resume", {})
            raise Failed(f"{found[0]['error']}: give engine.folder a place that it sees")
        if any(each != {"version": version} for each in found):
            raise Failed(f"not every worker has weights {version}: {json.dumps(found)[:300]}")

    def _order(self, method: str, **given: Any) -> list[dict[str, Any]]:
        """The answers of all workers to a call of one of their methods. Raises Failed."""
        body = {"method": method, "kwargs": given}
        answer = self._tell("/collective_rpc", body)
        found = answer.get("results") if isinstance(answer, dict) else None
        if not found or not all(isinstance(each, dict) for each in found):
            raise Failed(f"its workers answer {json.dumps(answer)[:300]} to {method}")
        return list(found)

    def _tell(self, path: str, body: Mapping[str, Any], as_json: bool = True) -> Any:
        """The server's answer to an order, which may be sent twice. Raises Failed."""
        return ORDERS(lambda: self.client.call(path, body, as_json=as_json))

    def _fail(self, row: PendingCall, error: Exception) -> None:
        if self.server is not None and self.server.dead():
            raise UserError(self.server.obituary()) from error
        super()._fail(row, error)

    def _why(self, failed: str) -> str:
        """The message for a failure; if strop's own server is dead, how it ended."""
        return self.server.obituary() if self.server and self.server.dead() else failed


@functools.lru_cache(maxsize=1024)  # it takes milliseconds, and prompts may have rules of their own
def _check_rules(rules: tuple[Rule, ...], vocabulary: int) -> None:
    """Raise UserError for rules that do not fit the vocabulary or leave nothing."""
    logits = torch.zeros(1, vocabulary)
    for rule in rules:
        logits = rule(logits)
    if not bool(logits.isfinite().any()):
        raise UserError(f"the rules {rules} leave no token")
