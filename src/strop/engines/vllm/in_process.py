"""vLLM in this process, without a server: it runs the model, strop draws the tokens.

It needs vLLM in strop's own environment. Tokens are drawn as in the local engine: they depend on a
request's seed, on the position and on the weights alone, with every rule and statistic.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.engines import weights_folder
from strop.engines.base import (
    ADAPTERS,
    CAPABILITIES,
    WAITING,
    Ended,
    Engine,
    Event,
    Request,
    Source,
    taken_out,
)
from strop.engines.local.causal import load_state
from strop.engines.local.slots import event_of
from strop.engines.sampling import LOGP, TOKEN, TOP
from strop.engines.vllm.settings import VllmOptions, adapter_options
from strop.engines.weights_folder import WeightsFolder
from strop.support.adapted import BASE, routes_of, weights_of
from strop.support.errors import UserError

PLACE = "make room in one of them"
WORKER = "strop.engines.vllm.inside.strop_in_vllm.Weights"
# Run in this process, with its threads, and report no usage.
SURROUNDINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class InProcessSettings(VllmOptions):
    """vLLM in this process."""

    def copies(self) -> tuple[int, int]:
        """vLLM's own copy, on the model's device."""
        return 1, 0

    def open(self, model: Any, tokenizer: Any, *, num_slots: int, context_length: int) -> Engine:
        """Open the engine. Raises UserError where vLLM is not installed or does not start."""
        if importlib.util.find_spec("vllm") is None:
            raise UserError(
                "engine.kind=vllm_here: this environment has no vLLM (pip install 'strop[vllm]'); "
                "engine.kind=vllm with engine.python takes one of another environment"
            )
        if torch.distributed.is_initialized():
            why = "this process already has a vLLM, and there can be only one"
            if torch.distributed.get_world_size() > 1:
                why = "it does not work with several training processes: take engine.kind=vllm"
            raise UserError(f"engine.kind=vllm_here: {why}")
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        folder = WeightsFolder(size, PLACE)
        try:
            vllm = self._begin(model, folder, num_slots)
            longest = min(context_length, vllm.model_config.max_model_len)
            return InProcessEngine(vllm, model, tokenizer, folder, num_slots, longest)
        except BaseException:
            folder.close()
            raise

    def _begin(self, model: Any, folder: WeightsFolder, num_slots: int) -> Any:
        """Start vLLM with the current weights."""
        os.environ.update(SURROUNDINGS)  # vLLM reads them while it loads
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.llm_engine import LLMEngine

        from strop.engines.vllm.draws import Draws

        start = weights_folder.write(model, folder, "model")
        several = [] if routes_of(model) is None else adapter_options(model)
        words = self.options(
            model,
            "--model", str(start),
            "--max-num-seqs", str(num_slots),
            "--skip-tokenizer-init", "--disable-log-stats", "--no-async-scheduling",
            "--no-use-tqdm-on-load",
            *several,
            "--worker-extension-cls", WORKER,
        )  # fmt: skip
        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        try:
            args = EngineArgs.from_cli_args(parser.parse_args(words))
        except SystemExit as error:  # vLLM has printed the reason
            raise UserError(f"engine.args: vLLM does not take {self.args!r}") from error
        args.logits_processors = [Draws]
        try:
            return LLMEngine.from_engine_args(args)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise UserError(f"vLLM does not start: {error}") from error
        finally:
            shutil.rmtree(start, ignore_errors=True)


@dataclass(eq=False)
class Own:
    """A request, and the tokens drawn for it."""

    id: int
    request: Request
    tokens: list[int]  # the prompt's and the new ones
    record: np.ndarray = field(default_factory=lambda: np.empty(0))  # of the newest draw
    kept: bytes = b""  # the set that its rules left
    refused: str = ""
    records: list[np.ndarray] = field(default_factory=list)  # of all draws
    sets: list[bytes] = field(default_factory=list)  # kept sets of these

    def __deepcopy__(self, memo: Any) -> Own:
        """Return itself: vLLM copies a request's arguments, but both sides share this object."""
        return self


class InProcessEngine(Engine):
    """Samples by steps of a vLLM in this process, with the weights of a model of this process.

    New weights abort vLLM's running requests, which are restarted, and empty its prefix cache. With
    several adapters vLLM has the base model once, and new weights are new adapters.
    """

    def __init__(
        self, vllm: Any, model: Any, tokenizer: Any, folder: WeightsFolder, num_slots: int,
        context_length: int,
    ) -> None:  # fmt: skip
        self.version = 0
        self.decode = tokenizer.decode
        self.longest = self.context_length = context_length
        self.most_requests = (WAITING + 1) * num_slots
        self.capabilities = CAPABILITIES
        self.vllm, self.model, self.folder = vllm, model, folder
        self.vocab_size = int(model.get_input_embeddings().num_embeddings)
        self.running: dict[int, Own] = {}
        self.events: list[Event] = []  # not yet returned by `poll`
        self.num_adapters = 0
        self.broken = ""
        self.routes = routes_of(model)
        self.adapters: dict[str, Any] = {}  # vLLM's `LoRARequest` of each, by name
        if self.routes is not None:
            self.capabilities |= {ADAPTERS}
            self._write_adapters()

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Give a request to vLLM; UserError where it cannot be sampled."""
        self._check(request)
        row = self.running[id] = Own(id, request, list(request.ids))
        weights = request.weights or ("" if self.routes is None else self.routes.known[0])
        self.vllm.add_request(
            str(id), {"prompt_token_ids": list(request.ids)}, self._params(row),
            lora_request=self.adapters.get(weights),
        )  # fmt: skip

    def cancel(self, id: int) -> list[Event]:
        """Stop a request; returns its events that are not reported yet."""
        if id in self.running:
            self._stop(self.running[id], "")
        return taken_out(self.events, id)

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Give every running row a token; returns the events to report."""
        if self.broken:
            raise UserError(self.broken)
        if self.running:
            for output in self.vllm.step():
                row = self.running.get(int(output.request_id))
                if row is not None and output.outputs[0].token_ids:
                    self._take(row, output.outputs[0].token_ids, output.finished)
        events, self.events = self.events, []
        return events

    def load_weights(self, state: Mapping[str, Tensor] | None, version: int) -> None:
        """Sample with other weights from the next token on; see Engine.load_weights."""
        if state is not None:
            load_state(self.model, state)
        for row in list(self.running.values()):
            self._stop(row, "broken")
        if self.routes is not None:
            self._write_adapters()
            if not self.vllm.reset_prefix_cache():
                raise UserError(f"vLLM does not take weights {version}: its cache is in use")
        else:
            self._write(version)
        self.version = version

    def _write(self, version: int) -> None:
        """Give vLLM the model's current weights."""
        place = weights_folder.write(self.model, self.folder, f"version-{version}")
        self.broken = "the engine has no weights to sample with: an update was interrupted"
        try:
            order = {"folder": str(place), "version": version}
            found = self.vllm.collective_rpc("strop_load_weights", kwargs=order)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if found != [{"version": version}] or not self.vllm.reset_prefix_cache():
            raise UserError(f"vLLM does not take weights {version}: {found}")
        self.broken = ""

    def _write_adapters(self) -> None:
        """Give vLLM the current adapters: trained ones under new names, because vLLM caches what it
        has read. The base is an adapter that adds nothing: for requests without an adapter beside
        others with one, vLLM 0.32 on a CPU drew tokens that were not the base model's.
        """
        from vllm.lora.request import LoRARequest

        assert self.routes is not None
        names = (BASE, *self.routes.known)
        left = {name: asked for name, asked in self.adapters.items() if name not in names}
        for name in names:
            trained = any(weight.requires_grad for weight in weights_of(self.model, name))
            if name in self.adapters and not trained:
                continue
            if name in self.adapters:
                left[name] = self.adapters[name]
            self.num_adapters += 1
            label = f"{name}-{self.num_adapters}"
            place = weights_folder.write_adapter(self.model, self.folder, name, label)
            self.adapters[name] = LoRARequest(label, self.num_adapters, str(place))
        for name, asked in left.items():
            shutil.rmtree(asked.lora_path, ignore_errors=True)
            if self.adapters[name] is asked:
                del self.adapters[name]

    def close(self) -> None:
        """End vLLM."""
        from vllm.distributed.parallel_state import (
            destroy_distributed_environment,
            destroy_model_parallel,
        )

        for row in list(self.running.values()):
            self._stop(row, "")
        self.vllm.engine_core.shutdown()
        destroy_model_parallel()
        destroy_distributed_environment()
        self.folder.close()

    # ---- implementation

    def _check(self, request: Request) -> None:
        request.check_fits(self.context_length, self.vocab_size)
        if request.weights and self.routes is not None:
            self.routes.check(request.weights)

    def _params(self, row: Own) -> Any:
        """vLLM's sampling parameters of a row."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from strop.engines.vllm.draws import ASKED

        return SamplingParams(
            temperature=0.0,  # strop's draw leaves vLLM only one token
            max_tokens=row.request.room(self.context_length),
            stop_token_ids=list(row.request.stop_ids),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={ASKED: row},
        )

    def _stop(self, row: Own, ended: Ended) -> None:
        """Abort a row at vLLM and end it."""
        self.vllm.abort_request([str(row.id)])
        self._end(row, ended)

    def _take(self, row: Own, new: list[int], finished: bool) -> None:
        """Record a new token of a row."""
        record = row.record
        if np.isnan(record[LOGP]):
            self._stop(row, "failed")
            return
        assert list(new) == [int(record[TOKEN])], "vLLM took another token than was drawn"
        stopped = row.request.until_stop(row.tokens, new, self.decode)[1]
        row.tokens.append(int(new[0]))
        row.records.append(record)
        row.sets.append(row.kept)
        full = len(row.records) >= row.request.room(self.context_length)
        if stopped or full:
            (self._end if finished else self._stop)(row, "stop" if stopped else "length")

    def _end(self, row: Own, ended: Ended) -> None:
        """Report all tokens of a row."""
        del self.running[row.id]
        width = TOP + 2 * row.request.num_top
        table = np.full((len(row.records), width), np.nan)
        for line, record in zip(table, row.records, strict=True):
            line[: len(record)] = record[:width]
        event = event_of(row.id, row.request, table, self.version, ended, row.sets)
        if ended == "failed":
            usual = (
                "no token could be drawn: the model's logits are not finite, or the rules "
                f"{row.request.rules} leave none"
            )
            event = event._replace(why=row.refused or usual)
        self.events.append(event)
