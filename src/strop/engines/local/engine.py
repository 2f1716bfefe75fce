"""The local engine: continuous batching of a Hugging Face causal model in this process."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from strop.engines.base import (
    ADAPTERS,
    CAPABILITIES,
    EXPERTS,
    WAITING,
    Ended,
    Engine,
    Event,
    Passes,
    Request,
    Source,
    taken_out,
)
from strop.engines.local.cache import Band
from strop.engines.local.causal import UNBOUNDED, CachedModel, Part, check_module
from strop.engines.local.cuda_graphs import copied
from strop.engines.local.slots import Fill, Row, Slots
from strop.engines.local.speculation import Speculation
from strop.engines.sampling import Plan, draw, make_plan
from strop.support.adapted import routes_of
from strop.support.devices import to_device
from strop.support.errors import UserError

KEPT_CACHE_BYTES = 256 * 2**20  # a cache up to this size is kept between rollouts
KEPT_CACHE_SHARE = 1 / 8  # on a GPU up to this share of its memory: recorded passes are kept too


class LocalEngine(Engine):
    """Samples from `model` with a fixed number of slots, each holding one row's cache.

    A row that ends is replaced by a waiting one at the next step; when nothing waits, the batch
    shrinks. Every step gives each running row one token. Requests with equal prompts share one
    prefill, forks copy their parent's cache. The module is used as it is, so a trainer may change
    its weights in place and then call load_weights(None, version).

    Where the cache is bounded, rows are admitted as far as it has room. A row that outgrows it
    evicts the shortest ones, which wait and later resume where they were, with the same tokens.

    decode: token ids -> text, for stop strings only; by default the tokenizer's.
    max_prefill_tokens: most tokens, padding included, of a prefill pass, but at least one row;
    None: by the device.
    max_cached_tokens: most tokens that the cache has room for: slots times the longest row.
    speculate: most tokens that a row drafts in a step from other rows' text; see Speculation.
    cuda_graphs: on a GPU, record decoding passes and replay them; see cuda_graphs.py.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
        num_slots: int = 256,
        context_length: int | None = None,
        max_prefill_tokens: int | None = None,
        max_cached_tokens: int | None = None,
        speculate: int = 0,
        cuda_graphs: bool = True,
        version: int = 0,
    ) -> None:
        if num_slots < 1:
            raise UserError(f"num_slots is {num_slots}; the engine needs at least 1")
        check_module(model)
        routed = routes_of(model) is not None
        self.version = version
        self.most_requests = (WAITING + 1) * num_slots
        self.passes = None if speculate else Passes()  # passes that check drafts do not compare
        self.longest = max_cached_tokens
        self.model = CachedModel(
            model, num_slots, max_cached_tokens, several=speculate > 0, cuda_graphs=cuda_graphs
        )
        optional = {ADAPTERS: routed, EXPERTS: self.model.experts is not None}
        self.capabilities = CAPABILITIES | {name for name, has in optional.items() if has}
        self.decode = decode or (tokenizer.decode if tokenizer is not None else None)
        self.vocab_size = self.model.vocab_size
        self.context_length = min(context_length or UNBOUNDED, self.model.context_length)
        self.max_prefill_tokens = max_prefill_tokens
        if why := self.model.why_no_bands:
            self.notes = (
                f"every step reads all running answers up to the longest: {type(model).__name__} "
                f"cannot read those of one length together, {why}",
            )
        elif (why := self.model.why_no_graphs) and cuda_graphs and self.model.device.type != "cpu":
            self.notes = (
                f"every step launches the kernels of {type(model).__name__} one by one, which "
                f"takes longer than computing them: it cannot be recorded, {why}",
            )
        elif self.model.graphs is not None and (why := self.model.why_not_fused):
            self.notes = (
                f"the modules of {type(model).__name__} are recorded as they are, "
                f"which is slower than strop's fused pass: {why}",
            )
        self.slots = Slots(num_slots, self.model.cache, self.model.device, self.model.call)
        self.speculation = (
            Speculation(self.model, self.slots, speculate, self._draw) if speculate else None
        )
        self.known: dict[int, Row] = {}  # waiting or running rows, and those ended with `keep`
        self.waiting: deque[Row] = deque()
        self.events: list[Event] = []  # not yet returned by `poll`
        self.plan: Plan | None = None
        # of the pass that was started ahead: its logits, and its start time
        self.next_pass: tuple[Tensor, float] | None = None

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Start a request; UserError when it cannot fit the context."""
        self._check(request)
        row = Row(id, request, list(request.ids))
        weights = zlib.crc32(request.weights.encode())  # the same in every process
        row.prompt_hash = row.group = hash((weights, request.ids))
        parent = None if source is None else self.known.get(source[0])
        if source is not None and parent is not None:
            assert parent.request.weights == request.weights, "a cache belongs to its weights"
            row.source = parent, source[1]
            if source[1] > len(parent.request.ids):  # else it only begins as its prompt does
                row.group = parent.group
        self.known[id] = row
        self.waiting.append(row)

    def cancel(self, id: int) -> list[Event]:
        """Stop a request and free its slot; returns its events that are not reported yet."""
        row = self.known.pop(id, None)
        if row is None:
            return []
        if row.status == "waiting":
            if row in self.waiting:  # else an interrupt came while it was admitted
                self.waiting.remove(row)
        elif row.status == "running":
            self.events += self.slots.report([row.slot], [""], self.version)
        row.status = "ended"
        if row.slot >= 0:
            self.slots.free(row.slot)
        return taken_out(self.events, id)

    def forget(self) -> None:
        """Free all caches, which would take room from the update."""
        for id in list(self.known):
            self.cancel(id)
        self.next_pass = None
        if self.slots.cache.shrink(kept_bytes(self.model.device)):
            self.model.release()
        self.model.unpack()
        if self.speculation is not None:  # so that a run that is resumed here drafts the same
            self.speculation.known.clear()

    @property
    def drafts(self) -> tuple[int, int]:  # type: ignore[override]
        """Numbers of tokens that were drafted so far, and of those that were accepted."""
        made = self.speculation
        return (0, 0) if made is None else (made.drafted, made.accepted)

    def load_weights(self, state: Mapping[str, Tensor] | None, version: int) -> None:
        """Sample with other weights from the next token on; all caches are recomputed.

        state: parameters by name, tied ones may be left out; None: the module's own weights were
        changed in place. Raises UserError when names are missing or unknown.
        """
        self._suspend(np.flatnonzero(self.slots.table["running"]).tolist())
        for slot in np.flatnonzero(self.slots.table["taken"]).tolist():
            self.slots.free(slot)
        self.model.renew(state)
        self.slots.origin = None
        self.version = version

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Give every running row one token; returns the events to report."""
        with self.model.generating():
            if self.waiting and not self.slots.table["running"].all():
                self._admit()
            number = self.slots.compact()
            if number:
                self._decode(self.slots.arrange(self._make_room(number)))
        events, self.events = self.events, []
        return events

    # ---- implementation

    def _check(self, request: Request) -> None:
        request.check_fits(self.context_length, self.vocab_size)
        bound, most = self.slots.cache.max_tokens, self._limit(request)
        if bound is not None and most > bound:
            raise UserError(
                f"a request may have {most} tokens, and engine.cache_tokens gives room for "
                f"{bound}: raise it, or lower rollout.max_tokens"
            )
        if request.weights and self.model.routes is not None:
            self.model.routes.check(request.weights)
        if request.stop_strings and self.decode is None:
            raise UserError("stop_strings need text; give the engine a tokenizer or `decode`")

    def _limit(self, request: Request) -> int:
        return min(len(request.ids) + request.max_tokens, self.context_length)

    def _length(self, slot: int) -> int:
        return int(self.slots.table["length"][slot])

    def _tokens(self, row: Row, start: int = 0) -> list[int]:
        """Its tokens so far, from this place on."""
        known = len(row.tokens)
        if row.slot < 0 or self._length(row.slot) == known:
            return row.tokens[start:]
        (unread,) = self.slots.records.of([row.slot])
        new: list[int] = unread[max(start - known, 0) :, 0].astype(np.int64).tolist()
        return row.tokens[start:] + new

    def _end(self, row: Row, keep: bool) -> None:
        row.status = "ended"
        if keep:
            self.slots.hold(row.slot)
        else:
            self.slots.free(row.slot)
            del self.known[row.id]

    def _suspend(self, slots: Sequence[int]) -> None:
        """Report running rows' new tokens and free their slots; they wait before all others."""
        unread = [s for s in slots if len(self.slots.row(s).tokens) < self._length(s)]
        self.events += self.slots.report(unread, [""] * len(unread), self.version)
        for slot in reversed(slots):
            row = self.slots.row(slot)
            self.slots.free(slot)
            row.status = "waiting"
            self.waiting.appendleft(row)

    def _make_room(self, number: int) -> int:
        """Give the cache room for the running rows' next token; returns how many still run."""
        slots = self.slots
        if slots.longest >= slots.cache.places:
            if surplus := slots.surplus(number):
                self._suspend(surplus)
                number = slots.compact()
            slots.grow(number)
        return number

    def _admit(self) -> None:
        """Move waiting rows into free slots, with their cache filled but for the last token."""
        waiting = list(self.waiting)
        sizes = [(len(row.tokens), self._limit(row.request)) for row in waiting]
        let_in = waiting[: self.slots.fitting(sizes)]
        heirs = self.slots.heirs(let_in)
        others = [row for row in let_in if row.id not in heirs]
        chosen = self.slots.choose(len(others))
        self.waiting = deque(others[len(chosen) :] + waiting[len(let_in) :])
        others = self.slots.sorted(others[: len(chosen)])
        waiting = [row for row in let_in if row.id in heirs] + others
        slots = [*heirs.values(), *chosen]
        if not slots:
            return
        lines, length = self.slots.extent()
        self.slots.cache.reserve(
            max(length, *(len(row.tokens) for row in waiting)), max(lines, *(s + 1 for s in slots))
        )
        table = self.slots.table
        taken = np.flatnonzero(table["taken"])
        by_prompt = dict(zip(table["prompt"][taken].tolist(), taken.tolist(), strict=True))
        leaders: dict[int, Fill] = {}
        first, second = [], []  # the second copy their prompt's cache from the first
        for row, slot in zip(waiting, slots, strict=True):
            leader = leaders.get(row.prompt_hash)
            fill = self._longest_share(row, slot, by_prompt.get(row.prompt_hash))
            if row.id not in heirs and leader is not None and leader.row.begins_as(row):
                end = len(leader.row.tokens) - 1
                shared = self._kept(min(len(row.request.ids), end, len(row.tokens) - 1), end)
                if shared > fill.shared:
                    second.append(Fill(row, slot, leader.slot, shared))
                    continue
            leaders.setdefault(row.prompt_hash, fill)
            first.append(fill)
        for fills in (first, second):
            self._fill(fills)
        for row in waiting:
            if row.id in heirs and (source := row.found_source()) is not None:
                parent, size = source
                parent.slot, parent.heir = -1, (row, size)
        self.slots.place(waiting, slots, self.context_length)

    def _longest_share(self, row: Row, slot: int, found: int | None) -> Fill:
        """The fill from the row's source, or from slot `found` where that has more of its tokens.

        An heir, whose source lies in its own slot, keeps what is there.
        """
        fill = Fill(row, slot)
        if (source := row.found_source()) is not None:
            fill = self._share(row, slot, *source)
        if found is not None and fill.source != slot and self.slots.row(found).begins_as(row):
            other = self._share(row, slot, self.slots.row(found), len(row.request.ids))
            fill = max(fill, other, key=lambda fill: fill.shared)
        return fill

    def _share(self, row: Row, slot: int, source: Row, at: int) -> Fill:
        end = self._length(source.slot) - 1
        shared = self._kept(min(at, end, len(row.tokens) - 1), end)
        return Fill(row, slot, source.slot, shared)

    def _kept(self, shared: int, end: int) -> int:
        """How many of the tokens that a row shares with a cache of `end` it can take from there:
        none but all of them where layers keep a state, which is that after the last one.
        """
        return shared if shared == end or not self.model.recurrent else 0

    def _fill(self, fills: list[Fill]) -> None:
        """Copy shared caches from other slots, and compute each row's rest but its last token."""
        if not fills:
            return
        copies = [fill for fill in fills if fill.shared and fill.source != fill.slot]
        if copies:
            source, target = ([getattr(x, name) for x in copies] for name in ("source", "slot"))
            self.slots.cache.copy(source, target, max(fill.shared for fill in copies))
        self.slots.cache.restart([fill.slot for fill in fills if not fill.shared])
        parts = [
            Part(
                fill.slot,
                fill.row.tokens,
                fill.shared,
                len(fill.row.tokens) - 1,
                fill.row.request.weights,
            )
            for fill in fills
        ]
        started, lengths = time.perf_counter(), [part.end - part.start for part in parts]
        rest = [part for part in parts if part.start < part.end]
        try:
            self.model.fill(rest, self.max_prefill_tokens)
        except BaseException:  # an interrupt: states may have a part of these tokens
            for slot in (part.slot for part in rest if self.model.recurrent):
                self.slots.free(slot)
            raise
        if self.passes is not None:
            self.passes.add_prefill(sum(lengths), time.perf_counter() - started)

    def _draw(self, number: int) -> tuple[Plan, np.ndarray]:
        """Draw a token for each of the first rows; returns the plan and the records."""
        try:
            return self._drawn(number)
        except BaseException:  # an interrupt: states may have tokens that would come once more
            if self.model.recurrent:
                self._suspend(range(number))
            raise

    def _drawn(self, number: int) -> tuple[Plan, np.ndarray]:
        slots, tokens, started = self.slots, self.slots.tokens, time.perf_counter()
        positions, uniform = slots.numbers(number)
        bands = slots.read(number)
        if self.next_pass is not None and slots.origin is not None:
            logits, started = self.next_pass
            logits = _of_rows(logits, slots.origin[:number])
        else:
            with self.model.under(slots.weights(number) if self.model.routes else ()):
                logits = self.model.decode(slots.last[:number], positions, bands)
        if self.plan is None or slots.changed:
            requests, like = slots.ways(number)
            self.plan = make_plan(requests, self.vocab_size, self.model.device, like)
            slots.changed = False
        token, record, sets = draw(logits, self.plan, uniform)
        slots.last[:number] = token
        records = self._to_host(record, positions + 1, bands)
        slots.write(records, sets)
        if self.passes is not None:
            self.passes.add_decode(bands, tokens, time.perf_counter() - started)
        return self.plan, records

    def _to_host(self, record: Tensor, next_N: Tensor, bands: Sequence[Band]) -> np.ndarray:
        """Copy the records to the host. Where passes are recorded as graphs, the next pass is
        started before: the GPU computes it while the host processes the records. If a row has
        ended, its part of that pass is wasted.
        """
        slots = self.slots
        self.next_pass = slots.origin = None
        if (
            self.model.graphs is None or self.speculation is not None
            or slots.longest + 1 >= slots.cache.places
        ):  # fmt: skip
            return record.cpu().numpy()
        await_records = copied(record)
        longer = [band._replace(used=band.used + 1) for band in bands]
        logits = self.model.decode(slots.last[: len(record)], next_N, longer)
        started = time.perf_counter()
        try:
            found = await_records()
        except BaseException:  # an interrupt: tokens were drawn that are not recorded
            self._suspend(range(len(record)))
            raise
        self.next_pass, slots.origin = (logits, started), np.arange(len(slots.rows))
        return found

    def _decode(self, number: int) -> None:
        slots, table = self.slots, self.slots.table[:number]
        if self.speculation is None:
            plan, records = self._draw(number)
            stopped, failed = plan.ends(records)
        else:
            plan, stopped, failed = self.speculation.draw(number)
        if failed.any():
            self._fail(np.flatnonzero(failed).tolist(), plan)
            stopped &= ~failed
        elif slots.quiet > 0 and not slots.texts and not stopped.any():
            return
        if slots.texts:
            for slot in np.flatnonzero(table["strings"] & ~stopped & ~failed).tolist():
                stopped[slot] = self._has_stop_string(slots.row(slot))
        left = table["limit"] - table["length"]
        slots.quiet = int(left.min())
        reported = np.flatnonzero((stopped | (left <= 0)) & ~failed).tolist()
        reasons: list[Ended] = ["stop" if stopped[slot] else "length" for slot in reported]
        rows = [slots.row(slot) for slot in reported]
        self.events += slots.report(reported, reasons, self.version)
        for row in rows:
            self._end(row, row.request.keep)

    def _fail(self, slots: list[int], plan: Plan) -> None:
        """End rows for which no token could be drawn; the others are not affected."""
        rows = [self.slots.row(slot) for slot in slots]
        usual = (
            "no token could be drawn: the model's logits are not finite, or the rules {} leave none"
        )
        asked = [row.request.rules for row in rows]
        why = [plan.refused.get(rules) or usual.format(rules) for rules in asked]
        self.events += self.slots.fail(slots, why, self.version)
        for row in rows:
            self._end(row, False)

    def _has_stop_string(self, row: Row) -> bool:
        assert self.decode is not None
        request = row.request
        start = max(len(request.ids) - request.drawn, self._length(row.slot) - request.window)
        return request.is_stopped(self._tokens(row, start), self.decode)


def kept_bytes(device: torch.device) -> int:
    """Bytes of the largest cache that is kept between rollouts."""
    if device.type != "cuda":
        return KEPT_CACHE_BYTES
    whole = torch.cuda.get_device_properties(device).total_memory
    return max(KEPT_CACHE_BYTES, int(whole * KEPT_CACHE_SHARE))


def _of_rows(logits: Tensor, row_N: np.ndarray) -> Tensor:
    if np.array_equal(row_N, np.arange(len(row_N))):
        return logits[: len(row_N)]
    return logits[to_device(row_N, logits.device)]
