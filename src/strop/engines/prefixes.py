"""Finds, by content, the request whose tokens another one begins with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

BLOCK = 8  # tokens


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
                common = {id: _common(self.tokens[id], tokens, number * BLOCK) for id in found}
                best = max(common, key=lambda id: common[id])
                return (best, common[best]) if common[best] else None
        for size in range(min(len(tokens), BLOCK - 1), 0, -1):
            if (id := self.id_of(tokens[:size])) is not None:
                return id, size
        return None


def _chains(tokens: Sequence[int]) -> list[int]:
    """A hash of each beginning of whole blocks, the shortest first."""
    found, chain = [], 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain = hash((chain, *tokens[start : start + BLOCK]))
        found.append(chain)
    return found


def _common(one: tuple[int, ...], other: tuple[int, ...], known: int) -> int:
    """Tokens of the longest common beginning; 0: not even those that have one hash."""
    if one[:known] != other[:known]:
        return 0
    if one == other[: len(one)]:
        return len(one)
    rest = zip(one[known:], other[known:], strict=False)
    return known + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
