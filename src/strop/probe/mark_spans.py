"""Find the blocks of an action in which a policy says whether, at what, and how it acts."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import Batch
from strop.columns import Column
from strop.errors import UserError
from strop.part import Result
from strop.services import Texts

SWITCH, SUBGOAL, ACTION = 1, 2, 4


@dataclass(frozen=True)
class MarkSpans:
    """A turn's tokens learn by what they decided: to take a new aim, the aim, or the action.

        span_t = 1 in the switch block + 2 in the subgoal block + 4 in the action block
        switch_k = the switch block says something that is none of `keep`
        subgoal_k: equal for turns with the same tokens in the subgoal block, 0 without one

    A block is the text from its opening tag to the first closing one after it, tags included.

    Reads: batch (the tokens), mask_T [T] bool, turn_T [T] int, texts.
    Writes: span_T [T] int, switch_K [K] bool, subgoal_K [K] int.
    Source: arXiv 2602.16165; code JonP07/HiPER-agent (hiper_hae/hier_mask.py).
    Differs from the source: no.
    Nearest part: find_marker.
    Edges: no switch block, or an empty one -> keeps; no action block -> every policy token of the
    turn is in it; a block that is not closed is none; only policy tokens count.
    """

    writes: ClassVar[tuple[str, ...]] = ("span_T", "switch_K", "subgoal_K")
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "span_T", "int", "bits: 1 switch, 2 subgoal, 4 action", door=("spans",), random="key:8"
        ),
        Column("switch_K", "bool", "the turn begins a subgoal"),
        Column("subgoal_K", "int", "the subgoal's text", "key", random="key:3"),
    )
    # Text before and after the switch. Default: released code.
    switch_tags: tuple[str, ...] = ("<switch>", "</switch>")
    # Text before and after the subgoal. Default: released code.
    subgoal_tags: tuple[str, ...] = ("<subgoal>", "</subgoal>")
    # Text before and after the action. Default: released code.
    action_tags: tuple[str, ...] = ("<action>", "</action>")
    # Words of a switch that goes on with the subgoal, in letters of either case. Default: released
    # code.
    keep: tuple[str, ...] = ("KEEP",)

    def __post_init__(self) -> None:
        for name in ("switch_tags", "subgoal_tags", "action_tags"):
            tags = getattr(self, name)
            if len(tags) != 2 or not all(isinstance(tag, str) and tag for tag in tags):
                raise UserError(f"mark_spans.{name} takes two texts, it is {tags!r}")

    def __call__(self, batch: Batch, mask_T: Tensor, turn_T: Tensor, texts: Texts) -> Result:
        num = batch.size("K")
        rows = mask_T.nonzero().squeeze(1)
        ids, rows_of_turns = batch["id_T"][rows].tolist(), rows.tolist()
        starts = torch.searchsorted(turn_T[rows], torch.arange(num + 1, device=rows.device))
        pieces = {id: texts.decode([id]) for id in set(ids)}
        spans, switches, subgoals = [0] * turn_T.shape[0], [], []
        known: dict[tuple[int, ...], int] = {(): 0}
        for start, end in pairwise(starts.tolist()):
            found, switches_now, subgoal = self._blocks(ids[start:end], pieces)
            for row, bits in zip(rows_of_turns[start:end], found, strict=True):
                spans[row] = bits
            switches.append(switches_now)
            subgoals.append(known.setdefault(subgoal, len(known)))
        return Result((
            torch.tensor(spans, dtype=torch.int64, device=rows.device),
            torch.tensor(switches, dtype=torch.bool, device=rows.device),
            torch.tensor(subgoals, dtype=torch.int64, device=rows.device),
        ))  # fmt: skip

    def _blocks(
        self, ids: list[int], pieces: dict[int, str]
    ) -> tuple[list[int], bool, tuple[int, ...]]:
        """A turn's bits by token, whether it switches, and the tokens of its subgoal block."""
        ends, text = [], ""
        for id in ids:
            text += pieces[id]
            ends.append(len(text))
        bits = [0] * len(ids)
        content = ""
        blocks = ((SWITCH, self.switch_tags), (SUBGOAL, self.subgoal_tags),
                  (ACTION, self.action_tags))  # fmt: skip
        for bit, tags in blocks:
            block = _block(text, *tags)
            if block is None and bit == ACTION:
                block = (0, len(text))
            if block is None:
                continue
            if bit == SWITCH:
                content = text[block[0] + len(tags[0]) : block[1] - len(tags[1])].strip()
            for place, end in enumerate(ends):
                begin = ends[place - 1] if place else 0
                whole = block == (0, len(text))  # tokens without text of their own included
                if whole or (end > block[0] and begin < block[1]):
                    bits[place] |= bit
        subgoal = tuple(id for id, bit in zip(ids, bits, strict=True) if bit & SUBGOAL)
        keeps = ("", *(word.strip().upper() for word in self.keep))
        return bits, content.upper() not in keeps, subgoal


def _block(text: str, opening: str, closing: str) -> tuple[int, int] | None:
    """Characters from where a tag opens to the end of the one that closes it."""
    begin = text.find(opening)
    end = text.find(closing, begin + len(opening)) if begin >= 0 else -1
    return (begin, end + len(closing)) if end >= 0 else None
