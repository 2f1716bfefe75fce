"""A Hugging Face causal model with a slot cache: forward passes, weights, and a self-check."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from strop.engines.local.cache import (
    CALL_BYTES,
    CALL_BYTES_ELSEWHERE,
    ELSEWHERE,
    Attention,
    Band,
    SlotCache,
    Span,
    parted,
)
from strop.engines.local.cuda_graphs import Graphs, rounded
from strop.engines.local.fused import Fused, Logits, why_not
from strop.engines.local.gpu_pass import GpuPass, why_not_heads
from strop.engines.local.ragged import NAME as BANDS
from strop.engines.local.ragged import Parted, Ragged, lay_out
from strop.engines.local.states import KINDS
from strop.support import linear
from strop.support.adapted import routes_of
from strop.support.devices import launching_on, to_device, why_no_kernels
from strop.support.errors import UserError
from strop.support.experts import experts_of
from strop.support.positions import context_of

UNBOUNDED = 1 << 40
# Prompt tokens that are computed in the time of the fixed cost of a pass, and most tokens of one
# pass, whose intermediate results should fit into a processor's caches.
PASS, PASS_ELSEWHERE = 64, 512
MOST, MOST_ELSEWHERE = 2048, 8192
PLACE = "_name_or_path"  # the path of a model in its configuration
# Exceptions that models raise for arguments that they do not take.
REFUSED = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError)


# From some tokens to the logits that are compared with those of a plain forward pass.
Trial = Callable[[list[int]], Tensor]


class Tried(NamedTuple):
    """The results of trials of a kind of model: attributes of its `CachedModel`."""

    why_not_fused: str
    why_no_bands: str
    why_no_graphs: str
    call: int


# By `kind_of` a model, and whether several tokens and graphs were tried; each is tried only once.
TRIED: dict[tuple[Any, bool, bool], Tried] = {}


class Part(NamedTuple):
    """A stretch of tokens to compute: tokens[start:end] of the sequence in `slot`.

    weights: the adapter of the row; empty: the model as it is, or its first.
    """

    slot: int
    tokens: Sequence[int]
    start: int
    end: int
    weights: str = ""


class CachedModel:
    """The module as it is (never copied), its attention masks and its cache in slots.

    max_cached: most tokens in the cache; None: no bound. Callers reserve room in `cache` first.
    several: `decode_several` will be called.
    call: places of a layer that are read in the time of one more call of attention.
    why_no_bands: why its layers read all rows up to the longest; empty where they take bands.
    experts: the model's experts, whose choices the cache then records; None: it has none.
    why_not_fused: why the model's own modules make its passes; empty where `fused` makes them, or
    on a GPU `gpu_pass`, which makes only those of decoding.
    why_no_graphs: why decoding passes are not recorded as CUDA graphs; empty where they are.

    Raises UserError when the model's architecture can't be cached in slots: a short decode of the
    first model of its kind is compared with a plain forward pass, here.
    """

    def __init__(
        self, model: Any, num_slots: int, max_cached: int | None = None, several: bool = False,
        cuda_graphs: bool = True,
    ) -> None:  # fmt: skip
        config = model.config.get_text_config()
        self.model = model
        self.vocab_size: int = config.vocab_size
        self.context_length: int = context_of(config) or UNBOUNDED
        self.device: torch.device = next(model.parameters()).device
        self.num_layers: int = config.num_hidden_layers
        self.packed = False
        self.reads: list[Tensor] = []  # weights that recorded passes read; empty: not looked up yet
        self.cache_name = cache_name(model)
        self.routes = routes_of(model)
        self.experts = experts_of(model)
        self.without: Callable[[], AbstractContextManager[Any]] = torch.no_grad
        self.attention = Attention(model)
        self.kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
        self.recurrent = any(KINDS[kind].state for kind in self.kinds)
        self.why_no_bands = "it has not been tried"
        self.fused: Fused | None = None
        self.gpu_pass: GpuPass | None = None
        self.graphs: Graphs | None = None
        kind = kind_of(model)
        key = kind, several, cuda_graphs
        found = TRIED.get(key) or self._tried(several, cuda_graphs)
        if kind is not None:
            TRIED[key] = found
        self.why_not_fused, self.why_no_bands, self.why_no_graphs, self.call = found
        self.fused = self.gpu_pass = self.graphs = None
        if not self.why_not_fused and self.device.type == "cpu":
            self.fused = Fused(model)
        if not self.why_no_graphs:
            self.gpu_pass = None if self.why_not_fused else GpuPass(model)
            self.graphs = self._graphs(num_slots)
        self.cache = self._cache(num_slots, max_cached)
        self.cache.doubles = self.graphs is not None
        self.cache.takes_lines = self.gpu_pass is not None and not several and max_cached is None

    def _tried(self, several: bool, cuda_graphs: bool) -> Tried:
        """Compares passes with the model's own. Raises UserError.

        Two rows of different lengths, prefilled and decoded, must give the plain logits.
        """
        length = min(8, self.context_length)
        lengths = [length, max(length // 2, 1)]
        whole, bands = [Band(0, 2, length)], [Band(0, 1, length), Band(1, 2, lengths[1])]
        name = self.model.config.model_type
        with launching_on(self.device), torch.no_grad(), self.evaluating():
            if reason := self._why_not(self._decoded(lengths, whole), length, lengths):
                raise UserError(
                    f"the local engine can't drive a {name!r} model: {reason}; {ELSEWHERE}"
                )
            why_no_graphs = "" if cuda_graphs else "engine.cuda_graphs is off"
            if self.device.type == "cpu":
                why_no_graphs = "it is on a CPU"
                why_not_fused = why_not(self.model) or self._why_not_fused(lengths, whole)
            else:
                why_not_fused, why_no_graphs = self._tried_on_gpu(lengths, why_no_graphs)
            why_no_bands = f"its attention is {self.attention.implementation}"
            if self.attention.implementation == "sdpa":
                self.why_no_bands = ""
                why_no_bands = self._why_not(self._decoded(lengths, bands), length, lengths)
            if several:
                self._check_several(lengths, bands)
        # recorded passes read all rows together, or each row up to its own length
        call = self._call() if why_no_graphs else UNBOUNDED
        return Tried(why_not_fused, why_no_bands, why_no_graphs, call)

    def _tried_on_gpu(self, lengths: Sequence[int], why_no_graphs: str) -> tuple[str, str]:
        """Why `gpu_pass` is not used, and why passes are not recorded.

        If `gpu_pass` is not used, the model's own modules are recorded.
        """
        whole = [Band(0, len(lengths), lengths[0])]
        if self.device.type != "cuda":
            why_no_graphs = f"it is on {self.device.type}"
        elif self.routes is not None or self.experts is not None or self.recurrent:
            why_no_graphs = "it has several adapters, experts or recurrent layers"
        if why_no_graphs:
            return why_no_graphs, why_no_graphs

        def tried() -> str:
            self.graphs = self._graphs(len(lengths), checks=True)
            try:
                with torch.inference_mode():  # as later: code is compiled for this mode alone
                    return self._why_not(self._decoded(lengths, whole), lengths[0], lengths)
            except Exception as error:  # compilers raise many kinds; the message is reported
                return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            finally:
                self.graphs = None

        why_not_fused = self._why_no_gpu_pass()
        if not why_not_fused:
            self.gpu_pass = GpuPass(self.model)
            self.gpu_pass.pack()
            why_not_fused = tried()
            self.gpu_pass = None
        return why_not_fused, "" if not why_not_fused else tried()

    def _why_no_gpu_pass(self) -> str:
        if why := why_no_kernels(self.device) or why_not(self.model, adapters=True):
            return why
        return why_not_heads(int(self.model.model.layers[0].self_attn.head_dim))

    def _graphs(self, num_slots: int, checks: bool = False) -> Graphs:
        return Graphs(self._newest, self._lent, num_slots, self.device, checks)

    def _newest(self, token_N: Tensor, place_N: Tensor, used: int) -> Tensor:
        """The decoding pass that `graphs` records."""
        if self.gpu_pass is not None:
            return self.gpu_pass(token_N, place_N, self.cache)
        position_N1 = place_N.clamp(min=0)[:, None]
        write_N1 = torch.where(place_N < 0, self.cache.places - 1, place_N)[:, None]
        span = Span(slice(0, len(token_N)), write_N1, used)
        return self.forward(token_N[:, None], position_N1, span)

    def _lent(self) -> Any:
        """Tensors that recorded passes read, so that they stay even if their owners drop them."""
        lent = self.gpu_pass and self.gpu_pass.angles
        return [*self.attention.steps], lent, dict(self.cache._begins)

    def _replayed(self, token_N: Tensor, place_N: Tensor, used: int) -> Tensor:
        assert self.graphs is not None
        if self.gpu_pass is not None:
            self.gpu_pass.reach(self.cache.places)
            used = 0
        else:
            used = rounded(used, self.cache.places - 1)
        if not self.reads:
            more = self.gpu_pass.tensors() if self.gpu_pass is not None else []
            self.reads = [*self.model.parameters(), *more]
        # looked up at each step: a sharded model's weights are freed and gathered between steps
        where = tuple(each.data_ptr() for each in self.reads)
        self.graphs.holds((where, self.cache.moved))
        return self.graphs(token_N, place_N, self.cache.lines, used)

    def _cache(self, num_slots: int, max_cached: int | None = None) -> SlotCache:
        notes = self.experts is not None
        return SlotCache(self.num_layers, num_slots, self.device, max_cached, notes, self.kinds)

    def forward(self, ids: Tensor, positions: Tensor, span: Span, **more: Any) -> Tensor:
        """Logits [N, V] of each row's last column; ids and positions [N, Q]."""
        positions = positions.to(self.device)
        found = self._run(ids.to(self.device), positions, positions, span, "last", **more)
        assert found is not None
        return found

    def _run(
        self,
        ids: Tensor,
        positions: Tensor,
        places: Tensor,
        span: Span,
        logits: Logits,
        **more: Any,
    ) -> Tensor | None:
        """A pass; `logits` is as in `Fused`. places: the positions of attention's queries."""
        self.cache.begin(span)
        masks = self.attention.masks(places, span.used)
        if self.fused is not None and self.fused.layers:
            return self.fused(ids, positions, masks, self.cache, span.used, logits, **more)
        watching = nullcontext() if self.experts is None else self.experts.watching()
        with watching as watch:
            output = self.model(
                input_ids=ids, position_ids=positions, attention_mask=masks,
                use_cache=True, logits_to_keep=0 if logits == "all" else 1,
                **{self.cache_name: self.cache}, **more,
            )  # fmt: skip
        self.cache.end()
        if watch is not None:
            self.cache.note(watch.chosen().view(*ids.shape, -1))
        found: Tensor = output.logits
        return found if logits == "all" else found[:, -1]

    def decode(self, tokens: Tensor, positions: Tensor, bands: Sequence[Band]) -> Tensor:
        """Logits [N, V] after the newest tokens [N] of the first N slots, at `positions` [N]."""
        used = max(band.used for band in bands)
        if self.graphs is not None:
            return self._replayed(tokens, positions, used)
        places = positions[:, None]
        span = Span(slice(0, len(tokens)), places, used)
        alone = len(bands) == 1 and self.fused is not None and bool(self.fused.layers)
        if self.why_no_bands or alone:
            return self.forward(tokens[:, None], places, span)
        with attending_by(self.model.config.get_text_config(), BANDS):
            return self.forward(tokens[:, None], places, span, strop_bands=Parted(bands))

    def release(self) -> None:
        """Free the recorded passes of a GPU and their copies of weights."""
        if self.graphs is not None:
            self.graphs.holds(None)
        if self.gpu_pass is not None:
            self.gpu_pass.release()
        self.unpack()

    def _call(self) -> int:
        cache = self.cache  # of the trial
        place = cache.num_bytes() / (len(cache.layers) * cache.lines * cache.places)
        call = CALL_BYTES if self.device.type == "cpu" else CALL_BYTES_ELSEWHERE
        return round(call / place)

    def decode_several(
        self, token_T: Tensor, ragged: Ragged, first_N: Tensor, bands: Sequence[Band]
    ) -> Tensor:
        """Logits [T, V] after each of several new tokens of the first rows, from `first_N` on."""
        used = max(band.used for band in bands)
        columns = torch.arange(ragged.width, device=self.device)
        places = (first_N[:, None] + columns).clamp_(max=used - 1)  # padding may lie beyond it
        position_T = first_N[ragged.row_T] + ragged.column_T
        rows = slice(0, ragged.num_rows)
        span = Span(rows, position_T[:, None], used, ragged.row_T)
        with attending_by(self.model.config.get_text_config(), BANDS):
            logits = self._run(
                token_T[None], position_T[None], places, span, "all",
                strop_ragged=ragged, strop_bands=Parted(bands),
            )  # fmt: skip
        assert logits is not None
        return logits[0]

    def fill(self, parts: Sequence[Part], max_tokens: int | None = None) -> None:
        """Compute the cache of these parts, longest first, in passes of at most max_tokens,
        but at least one row.

        Parts of about one length share a pass, so that there is little padding. All are computed
        when this returns, on a GPU too, where their time would otherwise count for a later pass.
        """
        if not parts:
            return
        here = self.device.type == "cpu"
        most = max_tokens or (MOST if here else MOST_ELSEWHERE)
        ordered = sorted(parts, key=lambda part: part.start - part.end)
        lengths = np.array([part.end - part.start for part in ordered])
        cuts, _ = parted(lengths, PASS if here else PASS_ELSEWHERE)
        if self.recurrent:  # padding would change the states
            cuts = np.flatnonzero(np.diff(lengths, prepend=-1)).tolist()
        for first, end in itertools.pairwise([*cuts, len(ordered)]):
            passes = -(-(end - first) // max(1, most // int(lengths[first])))
            for rows in np.array_split(np.arange(first, end), passes):
                self._fill(ordered[rows[0] : rows[-1] + 1])
        if not here:
            torch.accelerator.synchronize(self.device)

    def _fill(self, parts: list[Part]) -> None:
        start = np.array([part.start for part in parts])[:, None]
        end = np.array([part.end for part in parts])[:, None]
        width = int((end - start).max())
        new = [part.tokens[part.start : part.end] for part in parts]
        ids = np.array([[*own, *[0] * (width - len(own))] for own in new])
        place = start + np.arange(width)
        write = np.where(place < end, place, self.cache.places - 1)
        numbers = np.stack([ids, write, np.minimum(place, end - 1)])
        ids_NQ, write_NQ, position_NQ = to_device(numbers, self.device)
        rows = to_device(np.array(self.cache.lines_of([part.slot for part in parts])), self.device)
        span = Span(rows, write_NQ, int(end.max()), fresh=not start.any())
        with self.under([part.weights for part in parts]):
            self._run(ids_NQ, position_NQ, position_NQ, span, "none")

    def under(self, weights: Sequence[str], dim: int = 0) -> AbstractContextManager[None]:
        """Inside, the rows of a pass, along `dim` of a layer's input, have these adapters."""
        if self.routes is None:
            return nullcontext()
        return self.routes.by_row(weights, self.device, dim)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch dropout off, and back on if the trainer had it on."""
        training = self.model.training
        if training:
            self.model.eval()
        try:
            yield
        finally:
            if training:
                self.model.train()

    @contextmanager
    def generating(self) -> Iterator[None]:
        """`evaluating`, without gradient and with weights packed where the layers support it.

        Tensors computed in inference mode can take no part in a later gradient. So it is not used
        for layers that gather their weights from several processes and cache them, nor for classes
        outside transformers, which may cache anything.
        """
        if not self.packed:
            self.reads = []
            if self.gpu_pass is not None and why_not(self.model, adapters=True):
                # its adapters have changed; when weights change, all slots are empty
                self.gpu_pass, self.cache.takes_lines = None, False
                self.cache.reset_lines()
                self.release()
            if self.gpu_pass is not None:
                self.gpu_pass.pack()
            if self.fused is not None and not why_not(self.model):
                self.fused.pack()
                linear.pack(self.model.lm_head)
            else:
                linear.pack(self.model)
                linear.fuse_norms(self.model)
            self.packed = True
            known = type(self.model).__module__.startswith("transformers.")
            whole = all(type(each) is nn.Parameter for each in self.model.parameters())
            self.without = torch.inference_mode if known and whole else torch.no_grad
        inside = launching_on(self.device)
        with inside, self.without(), self.evaluating(), linear.with_packed():
            yield

    def unpack(self) -> None:
        """Drop packed copies, before the weights change or to free their memory."""
        linear.unpack(self.model)
        linear.undo_norms(self.model)
        if self.fused is not None:
            self.fused.unpack()
        self.packed = False

    def renew(self, state: Mapping[str, Tensor] | None) -> None:
        """Use other weights; see load_state. None: they were changed in place."""
        self.unpack()
        if state is not None:
            load_state(self.model, state)

    def _why_not_fused(self, lengths: Sequence[int], bands: Sequence[Band]) -> str:
        """Why `fused` cannot make the passes; empty where it can."""
        self.fused = Fused(self.model)
        self.fused.pack()
        reason = self._why_not(self._decoded(lengths, bands), lengths[0], lengths)
        self.fused.unpack()
        if reason:
            self.fused = None
        return reason

    def _decoded(self, lengths: Sequence[int], bands: Sequence[Band]) -> Trial:
        """A trial that prefills rows of these lengths but their last tokens, and decodes those."""

        def decoded(tokens: list[int]) -> Tensor:
            self.fill([Part(i, tokens, 0, n - 1) for i, n in enumerate(lengths) if n > 1])
            newest = torch.tensor([tokens[n - 1] for n in lengths], device=self.device)
            positions = torch.tensor(lengths, device=self.device) - 1
            return self.decode(newest, positions, bands)

        return decoded

    def _check_several(self, lengths: Sequence[int], bands: Sequence[Band]) -> None:
        """Two rows with different numbers of new tokens must give the plain logits."""
        length = lengths[0]
        number = min(3, length)
        numbers = np.array([number, 1])

        def decoded(tokens: list[int]) -> Tensor:
            first = [n - k for n, k in zip(lengths, numbers.tolist(), strict=True)]
            self.fill([Part(i, tokens, 0, n) for i, n in enumerate(first) if n > 0])
            new = [*tokens[first[0] : lengths[0]], tokens[first[1]]]
            new_T, first_N = (torch.tensor(x, device=self.device) for x in (new, first))
            return self.decode_several(new_T, lay_out(numbers, self.device), first_N, bands)

        what = f"draft tokens for a {self.model.config.model_type!r} model"
        if self.recurrent:
            raise UserError(
                f"the local engine can't {what}: the states of its recurrent layers do not go back "
                "before a draft that is rejected; leave engine.speculate out"
            )
        if self.attention.implementation != "sdpa":
            raise UserError(
                f"the local engine can't {what} whose attention is "
                f"{self.attention.implementation}, only with sdpa: leave engine.speculate out"
            )
        ends = [*range(length - number + 1, length + 1), lengths[1]]
        if reason := self._why_not(decoded, length, ends):
            raise UserError(f"the local engine can't {what}: {reason}; leave engine.speculate out")

    def _why_not(self, decoded: Trial, length: int, ends: Sequence[int]) -> str:
        """Why `decoded` does not give the logits after the first n of a trial's tokens, for each n
        in `ends`; empty where it does.
        """
        tokens = [index % self.vocab_size for index in range(3, 3 + length)]
        self.cache = self._cache(2)
        self.cache.reserve(length, 2)
        try:
            found = decoded(tokens).double()
        except REFUSED as error:
            return f"{type(error).__name__}: {error}"
        ids = torch.tensor([tokens], device=self.device)
        plain = self.model(input_ids=ids, use_cache=False).logits[0, [n - 1 for n in ends]].double()
        scale = (plain - plain.mean(-1, keepdim=True)).norm() + 1e-6
        difference = float((found - plain).norm() / scale)  # relative to how much logits vary
        if difference > (1e-3 if self.model.dtype in (torch.float32, torch.float64) else 0.2):
            return f"its cached logits differ from the plain forward pass by {difference:.1%}"
        return ""


def kind_of(model: nn.Module) -> tuple[Any, ...] | None:
    """A key of all that a model's trials depend on: code, attention and sizes, but no weights.

    None: its modules have hooks, or forward methods of their own, so it must be tried itself.
    """
    modules = [*model.modules()]
    for each in modules:
        exchanged = "forward" in vars(each) and not linear.is_norm(each)
        if each._forward_hooks or each._forward_pre_hooks or exchanged:
            return None
    code = tuple((type(each), type(each).forward) for each in modules)
    tensors = (*model.parameters(), *model.buffers())
    kinds = tuple((x.shape, x.dtype, x.device, type(x)) for x in tensors)
    settings = {name: value for name, value in vars(model.config).items() if name != PLACE}
    own = getattr(model.config, "_attn_implementation", "")
    attention = tuple(ALL_ATTENTION_FUNCTIONS.get(name) for name in (own, BANDS))
    return code, kinds, attention, repr(settings)


def cache_name(model: Any) -> str:
    """The argument of the model's forward pass that takes a cache, from the signature of its
    decoder: `cache` since transformers 5.24, `past_key_values` before, `cache_params` in Mamba.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    names = inspect.signature((decoder or model).forward).parameters
    own = [name for name in ("cache", "cache_params") if name in names]
    return own[0] if own else "past_key_values"


def check_module(model: nn.Module) -> None:
    """UserError unless the module looks like a Hugging Face causal model."""
    if not hasattr(model, "config") or not hasattr(model.config, "get_text_config"):
        raise UserError(
            f"the local engine drives Hugging Face causal models; {type(model).__name__} has no "
            "configuration of one"
        )


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy weights by name; tied ones may be left out. UserError when names do not fit."""
    own = model.state_dict(keep_vars=True)
    unknown = sorted(set(state) - set(own))
    given = {own[name].data_ptr() for name in state if name in own}
    missing = sorted(n for n, t in own.items() if n not in state and t.data_ptr() not in given)
    if unknown or missing:
        raise UserError(
            f"these weights do not fit the engine's model: {len(unknown)} unknown names "
            f"({unknown[:3]}), {len(missing)} missing ({missing[:3]})"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


@contextmanager
def attending_by(config: Any, name: str) -> Iterator[None]:
    """Inside, the layers of a configuration attend by the function registered in transformers under
    this name.
    """
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
