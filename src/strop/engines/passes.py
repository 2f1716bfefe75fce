"""What an engine's passes took: running sums, from which the costs of a pass can be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strop.engines.local.bands import Band

PASSES, SECONDS = "passes", "seconds"


class Sums:
    """Sums over passes of 1, of sizes, of seconds and of the products of each two of these.

    All that least squares of the seconds need, whatever the number of passes. sizes: their names.
    """

    def __init__(self, *sizes: str) -> None:
        self.terms = (PASSES, *sizes, SECONDS)
        self.values = [0.0] * len(names(self.terms))

    def add(self, *numbers: float) -> None:
        """One more pass: its sizes, then its seconds."""
        values, place, terms = self.values, 0, (1.0, *numbers)
        for first, own in enumerate(terms):
            for other in terms[first:]:
                values[place] += own * other
                place += 1

    def told(self) -> dict[str, float]:
        """The sums by name; a product is `first_second`."""
        return dict(zip(names(self.terms), self.values, strict=True))


class Passes:
    """Of an engine: decode steps by their rows and the tokens in the caches of these, and passes
    over prompts and over caches read again by their tokens.

    places: of the caches that decode steps read, those in vain among them.
    """

    def __init__(self) -> None:
        self.decode, self.prefill = Sums("rows", "tokens"), Sums("tokens")
        self.places = 0

    def add_decode(self, bands: Sequence[Band], tokens: int, seconds: float) -> None:
        """One more decode step, of the rows of these bands with so many tokens in their caches."""
        self.places += sum((band.end - band.first) * band.used for band in bands)
        self.decode.add(bands[-1].end, tokens, seconds)

    def add_prefill(self, tokens: int, seconds: float) -> None:
        """Passes that rows were let in with, over so many tokens."""
        if tokens:
            self.prefill.add(tokens, seconds)

    def told(self) -> dict[str, float]:
        """All sums by name, `decode/rows` and so on."""
        found = {"decode/places": float(self.places)}
        for kind, sums in (("decode", self.decode), ("prefill", self.prefill)):
            found |= {f"{kind}/{name}": value for name, value in sums.told().items()}
        return found


def names(terms: tuple[str, ...]) -> list[str]:
    """Of the sums of each term and of the products of each two; the first term is the 1."""
    return [
        other if not place else f"{first}_{other}"
        for place, first in enumerate(terms)
        for other in terms[place:]
    ]
