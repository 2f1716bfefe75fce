"""Finds the ended request whose cache a new request can continue from, by their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BLOCK = 8  # tokens that requests must share


class Prefixes:
    """Ended requests whose caches are kept, by the blocks of their tokens.

    Each prefix of whole blocks has a chained hash. Among the requests that share the longest chain
    with the given tokens, `find` takes the one with the longest common prefix. Where none shares a
    block, it takes a request all of whose tokens are a prefix: what continues a short request
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
        """Add a request with these tokens."""
        self.tokens[id] = tokens
        self.ids.setdefault(tokens, {})[id] = None
        self.chains[id] = _chains(tokens)
        for chain in self.chains[id]:
            self.by_chain.setdefault(chain, {})[id] = None

    def remove(self, id: int) -> None:
        """Remove a request."""
        tokens = self.tokens.pop(id)
        del self.ids[tokens][id]
        if not self.ids[tokens]:
            del self.ids[tokens]
        for chain in self.chains.pop(id):
            del self.by_chain[chain][id]
            if not self.by_chain[chain]:
                del self.by_chain[chain]

    def id_of(self, tokens: tuple[int, ...]) -> int | None:
        """The newest request with exactly these tokens."""
        found = self.ids.get(tokens)
        return next(reversed(found)) if found else None

    def find(self, tokens: tuple[int, ...]) -> tuple[int, int] | None:
        """A request and the number of its tokens that these begin with; None: there is none."""
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
        """The one that shares most, among requests that share `known` tokens but no further block.

        None where only their hashes are equal.
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
    """The hash of each prefix of whole blocks, the shortest first."""
    found, chain = [], 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain = hash((chain, *tokens[start : start + BLOCK]))
        found.append(chain)
    return found
