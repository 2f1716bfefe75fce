"""Whose cache a request may go on from: ended requests, found by the content of their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BLOCK = 8  # tokens that requests must share


class Prefixes:
    """Requests that have ended with their caches held, by the blocks of their tokens.

    Each beginning of whole blocks has a chained hash. Of the requests that share the longest chain
    with the asked tokens the one with the longest common beginning is found. Where none shares a
    block, a request is found of which all tokens are a beginning: what goes on from a short one
    belongs to it too, with its weights.
    """

    def __init__(self) -> None:
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.ids: dict[tuple[int, ...], dict[int, None]] = {}  # the newest last
        self.chains: dict[int, list[int]] = {}
        self.by_chain: dict[int, dict[int, None]] = {}  # a hash -> requests, the newest last

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def add(self, id: int, tokens: tuple[int, ...]) -> None:
        """Hold a request of these tokens."""
        self.tokens[id] = tokens
        self.ids.setdefault(tokens, {})[id] = None
        self.chains[id] = _chains(tokens)
        for chain in self.chains[id]:
            self.by_chain.setdefault(chain, {})[id] = None

    def remove(self, id: int) -> None:
        """Hold it no longer."""
        tokens = self.tokens.pop(id)
        del self.ids[tokens][id]
        if not self.ids[tokens]:
            del self.ids[tokens]
        for chain in self.chains.pop(id):
            del self.by_chain[chain][id]
            if not self.by_chain[chain]:
                del self.by_chain[chain]

    def id_of(self, tokens: tuple[int, ...]) -> int | None:
        """The newest request of exactly these tokens."""
        found = self.ids.get(tokens)
        return next(reversed(found)) if found else None

    def find(self, tokens: tuple[int, ...]) -> tuple[int, int] | None:
        """A request, and with how many of its tokens these begin; None: there is none."""
        chains = _chains(tokens)
        for number in range(len(chains), 0, -1):
            if found := self.by_chain.get(chains[number - 1]):
                return self._longest(found, tokens, number * BLOCK)
        for size in range(min(len(tokens), BLOCK - 1), 0, -1):
            if (id := self.id_of(tokens[:size])) is not None:
                return id, size
        return None

    def _longest(
        self, found: Iterable[int], tokens: tuple[int, ...], known: int
    ) -> tuple[int, int] | None:
        """Of requests that share so many tokens, but no block more, the one that shares most.

        None where they only have one hash.
        """
        rest, best, most = tokens[known : known + BLOCK], -1, -1
        for id in found:
            common = 0
            for one, other in zip(self.tokens[id][known : known + BLOCK], rest, strict=False):
                if one != other:
                    break
                common += 1
            if common > most:
                best, most = id, common
                if common == len(rest):
                    break
        return (best, known + most) if self.tokens[best][:known] == tokens[:known] else None


def _chains(tokens: Sequence[int]) -> list[int]:
    """A hash of each beginning of whole blocks, the shortest first."""
    found, chain = [], 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain = hash((chain, *tokens[start : start + BLOCK]))
        found.append(chain)
    return found
