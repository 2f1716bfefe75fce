"""Put each drawn prompt into a class of difficulty by its success so far."""

import bisect
from dataclasses import dataclass
from typing import ClassVar

from strop.batch.columns import Column
from strop.method.part import Draw, Result, require, require_one_of
from strop.parts.sampling._tracked import Tracked
from strop.support.errors import UserError

APART = -1


@dataclass(frozen=True)
class SortBySuccess:
    """Prompts of about equal success share a class, and change it only on clear evidence.

        class: the number of edges <= the prompt's success (0 if never drawn); 0 is the hardest
        a prompt that has a class leaves it upwards over an edge e only where success >= e + margin,
        downwards only where success <= e - margin

    Metric: bins/frac_{n} (draws in class n / draws).

    Reads: draws, tracked, state.   Writes: the draws, with bin_B [B] int.
    Source: arXiv 2601.19280 (online difficulty classes); code kishanpb/verl-gdro.
    Differs from the source: its code takes a move over several edges at once, or not at all, by
    the margin at the lower class's upper edge ("code"); here each edge is checked ("paper").
    Nearest part: track_success, which measures the success.
    Edges: set_apart: success 0 or 1 exactly, once drawn -> -1, no class; the classes, keyed by uid,
    last over steps and are in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ("bin_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("bin_B", "int", "class of its prompt by success, 0 the hardest; -1: none",
               random="key:3"),
    )  # fmt: skip
    # Success at which one class ends and the next begins, rising. Default: released code.
    edges: tuple[float, ...] = (0.4, 0.75)
    # How far beyond an edge a prompt must be to cross it. Default: released code.
    margin: float = 0.03
    # Whether prompts never or always solved are in no class. Default: paper (no).
    set_apart: bool = False
    # Several edges at once: "paper" or "code". Default: paper (each is checked).
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require(self, "margin", low=0.0)
        require_one_of(self, "source_form", ("paper", "code"))
        if not self.edges or list(self.edges) != sorted(set(self.edges)):
            raise UserError(f"sort_by_success.edges must be rising numbers: {self.edges}")

    def init(self) -> dict[str, dict[int, int]]:
        """No prompt has a class."""
        return {"bins": {}}

    def __call__(
        self, draws: tuple[Draw, ...], tracked: Tracked, state: dict[str, dict[int, int]]
    ) -> Result:
        known = tracked.of([draw.uid for draw in draws])
        pairs = zip(draws, known.success_N.tolist(), strict=True)
        bins, binned = dict(state["bins"]), []
        for draw, success in pairs:
            met = success == success
            place = self.place(success if met else 0.0, bins.get(draw.uid))
            bins[draw.uid] = place
            if self.set_apart and met and success in (0.0, 1.0):
                place = APART
            why = f"class {place} by a success of {success:.2f}" if met else f"class {place}, new"
            binned.append(draw._replace(columns={**draw.columns, "bin_B": place}).because(why))
        metrics = {
            f"bins/frac_{n}": sum(draw.columns["bin_B"] == n for draw in binned)
            / max(len(binned), 1)
            for n in range(len(self.edges) + 1)
        }
        return Result(tuple(binned), {"bins": bins}, metrics)

    def place(self, success: float, before: int | None) -> int:
        """The class of a prompt that was in the class `before`; None: in none."""
        after = bisect.bisect_right(self.edges, success)
        if before is None or after == before:
            return after
        if self.source_form == "code":
            edge = self.edges[min(before, after)]
            far = success >= edge + self.margin if after > before else success <= edge - self.margin
            return after if far else before
        place = before
        while place < after and success >= self.edges[place] + self.margin:
            place += 1
        while place > after and success <= self.edges[place - 1] - self.margin:
            place -= 1
        return place
