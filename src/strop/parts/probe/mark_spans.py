"""Find the blocks of an action that have its switch, its subgoal and the action itself."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import Result
from strop.method.services import Texts
from strop.parts.probe._token_text import TokenText
from strop.support.errors import UserError

SWITCH, SUBGOAL, ACTION = 1, 2, 4


@dataclass(frozen=True)
class MarkSpans:
    """A turn's tokens learn by what they decide: whether to switch, the subgoal, or the action.

        span_t = 1 in the switch block + 2 in the subgoal block + 4 in the action block
        switch_k = the switch block has a text that is none of `keep`
        subgoal_k: equal for turns with the same tokens in the subgoal block, 0 without one

    A block is the text from its opening tag to the first closing one after it, tags included.

    Reads: batch (the tokens), mask_T [T] bool, turn_T [T] int, texts.
    Writes: span_T [T] int, switch_K [K] bool, subgoal_K [K] int.
    Source: arXiv 2602.16165; code JonP07/HiPER-agent (hiper_hae/hier_mask.py).
    Differs from the source: no.
    Nearest part: find_marker.
    Edges: no switch block, or an empty one -> no switch; no action block -> every policy token of
    the turn is in it; a block that is not closed is none; only policy tokens count.
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
    # Words of a switch that keep the subgoal, in upper or lower case. Default: released code.
    keep: tuple[str, ...] = ("KEEP",)

    def __post_init__(self) -> None:
        for name in ("switch_tags", "subgoal_tags", "action_tags"):
            tags = getattr(self, name)
            if len(tags) != 2 or not all(isinstance(tag, str) and tag for tag in tags):
                raise UserError(f"mark_spans.{name} takes two texts, it is {tags!r}")

    def __call__(self, batch: Batch, mask_T: Tensor, turn_T: Tensor, texts: Texts) -> Result:
        row_N, num = segments.rows_where(mask_T), batch.size("K")
        size_K = segments.count(segments.at(turn_T, row_N), num)
        turns = _Turns(segments.at(batch["id_T"], row_N), size_K.cpu().numpy(), texts)
        id_N, keeps = turns.id_N, ("", *(word.strip().upper() for word in self.keep))
        bits_N = np.zeros_like(id_N)
        switches, subgoals = np.zeros(num, dtype=bool), np.zeros(num, dtype=np.int64)
        known = {b"": 0}
        blocks = ((SWITCH, self.switch_tags), (SUBGOAL, self.subgoal_tags),
                  (ACTION, self.action_tags))  # fmt: skip
        for bit, (opening, closing) in blocks:
            turn_M, begin_M, end_M = turns.blocks(opening, closing, bit == ACTION)
            first_M, stop_M = turns.tokens(turn_M, begin_M, end_M)
            bits_N |= _inside(first_M, stop_M, len(id_N)) * bit
            if bit == SWITCH:
                bounds = zip(begin_M.tolist(), end_M.tolist(), strict=True)
                inner = [turns.text[a + len(opening) : b - len(closing)] for a, b in bounds]
                switches[turn_M] = [text.strip().upper() not in keeps for text in inner]
            elif bit == SUBGOAL:
                found = (each.tolist() for each in (turn_M, first_M, stop_M))
                for turn, first, stop in zip(*found, strict=True):
                    subgoals[turn] = known.setdefault(id_N[first:stop].tobytes(), len(known))
        span_T = torch.zeros_like(turn_T)
        span_T[row_N] = torch.from_numpy(bits_N).to(span_T)
        columns = (torch.from_numpy(each).to(span_T.device) for each in (switches, subgoals))
        metrics = {"spans/frac_switching": float(switches.mean()) if num else 0.0}
        return Result((span_T, *columns), metrics=metrics)


class _Turns(TokenText):
    """The text of all turns, and the position of each turn in it."""

    def __init__(self, id_N: Tensor, size_K: np.ndarray, texts: Texts) -> None:
        super().__init__(id_N, texts)
        self.stop_K = size_K.cumsum()  # the first token after each turn
        self.first_K = self.stop_K - size_K
        border = np.concatenate([[0], self.end_N])
        self.from_K, self.to_K = border[self.first_K], border[self.stop_K]

    def blocks(
        self, opening: str, closing: str, else_all: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Turns that have a block, and its characters, from the opening tag to the closing one.

        else_all: in a turn without a block, all of its characters.
        """
        begin_K = self._next(opening, self.from_K)
        end_K = self._next(closing, begin_K + len(opening)) + len(closing)
        has_K = end_K <= self.to_K
        if else_all:
            begin_K, end_K = np.where(has_K, (begin_K, end_K), (self.from_K, self.to_K))
            has_K[:] = True
        return np.flatnonzero(has_K), begin_K[has_K], end_K[has_K]

    def _next(self, wanted: str, from_K: np.ndarray) -> np.ndarray:
        """The first position of `wanted` at or after each character; without one the text's end."""
        found = np.append(self.find(wanted), len(self.text))
        next_K: np.ndarray = found[np.searchsorted(found, np.minimum(from_K, len(self.text)))]
        return next_K

    def tokens(
        self, turn_M: np.ndarray, begin_M: np.ndarray, end_M: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that have characters of a block: the first, and the first one after them."""
        first_M = np.searchsorted(self.end_N, begin_M, side="right")
        stop_M = np.searchsorted(self.begin_N, end_M, side="left")
        # A block that is its whole turn includes tokens without characters of their own.
        whole_M = (begin_M == self.from_K[turn_M]) & (end_M == self.to_K[turn_M])
        first_M = np.where(whole_M, self.first_K[turn_M], first_M)
        return first_M, np.where(whole_M, self.stop_K[turn_M], stop_M)


def _inside(first_M: np.ndarray, stop_M: np.ndarray, num: int) -> np.ndarray:
    """1 for tokens [N] from each first one to before its stop, else 0; the ranges are in order."""
    border = np.stack([first_M, stop_M], axis=1).ravel()
    sizes = np.diff(border, prepend=0, append=num)
    return np.repeat(np.arange(len(sizes)) % 2, sizes)
