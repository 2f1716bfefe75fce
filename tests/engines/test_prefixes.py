"""Which held request a new one continues, compared with a search through all of them."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from strop.engines.prefixes import BLOCK, Prefixes

# Two tokens and one shared prefix make long common prefixes, and blocks that differ late.
TOKENS = st.integers(0, 1)
BEGINNING = (0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0)
SEQUENCES = st.builds(
    lambda size, rest: (*BEGINNING[:size], *rest),
    st.integers(0, len(BEGINNING)),
    st.lists(TOKENS, max_size=20),
)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def check(prefixes: Prefixes, held: dict[int, tuple[int, ...]], tokens: tuple[int, ...]) -> None:
    longest = max((common(own, tokens) for own in held.values()), default=0)
    found = prefixes.find(tokens)
    if longest < BLOCK:  # one that goes on from all of a short one belongs to it
        whole = [own for own in held.values() if own and own == tokens[: len(own)]]
        size = max(map(len, whole), default=0)
        assert (found and (held[found[0]], found[1])) == ((tokens[:size], size) if size else None)
        return
    assert found is not None
    id, size = found
    assert size == longest == common(held[id], tokens)


@given(st.lists(SEQUENCES, max_size=12), st.data())
def test_the_longest_common_beginning_is_found(sequences, data):
    """Also after some are removed, and where some have equal tokens."""
    prefixes, held = Prefixes(), dict(enumerate(sequences))
    for id, tokens in held.items():
        prefixes.add(id, tokens)
    asked = st.one_of(SEQUENCES, *[st.just(each) for each in sequences])
    check(prefixes, held, data.draw(asked))
    for id in data.draw(st.permutations(sorted(held))):
        prefixes.remove(id)
        del held[id]
        check(prefixes, held, data.draw(asked))
        assert bool(prefixes) == bool(held)
    assert (prefixes.tokens, prefixes.ids, prefixes.by_chain) == ({}, {}, {})


@given(st.lists(SEQUENCES, min_size=1, max_size=8), st.data())
def test_the_newest_of_equal_tokens_is_told_by_all_of_them(sequences, data):
    prefixes = Prefixes()
    for id, tokens in enumerate(sequences):
        prefixes.add(id, tokens)
    tokens = data.draw(st.one_of(SEQUENCES, st.sampled_from(sequences)))
    equal = [id for id, own in enumerate(sequences) if own == tokens]
    assert prefixes.id_of(tokens) == (equal[-1] if equal else None)


def test_equal_tokens_twice():
    prefixes, tokens = Prefixes(), tuple(range(20))
    prefixes.add(3, tokens)
    prefixes.add(5, tokens)
    assert prefixes.find((*tokens, 7)) in ((3, 20), (5, 20))
    prefixes.remove(3)
    assert (prefixes.find(tokens), prefixes.id_of(tokens)) == ((5, 20), 5)
    prefixes.add(6, tokens)
    prefixes.remove(6)
    assert prefixes.find(tokens) == (5, 20)  # it is there still


def test_by_hand():
    prefixes = Prefixes()
    a, b = (*range(8), 8, 9), (*range(8), 8, 1, 2, 3, 4, 5, 6, 7)
    prefixes.add(0, a)
    prefixes.add(1, b)
    assert prefixes.find(a) == (0, 10)
    assert prefixes.find((*a, 3)) == (0, 10)
    assert prefixes.find((*range(8), 8, 1, 5)) == (1, 10)
    assert prefixes.find((*range(8), 4)) in ((0, 8), (1, 8))
    assert prefixes.find(tuple(range(7))) is None  # less than a block
    assert prefixes.find((1, *range(1, 12))) is None


def test_other_tokens_with_the_same_hashes_are_not_found():
    """-1 and -2 have one hash in Python."""
    prefixes = Prefixes()
    prefixes.add(0, (-1,) * 8)
    assert hash((0, *(-1,) * 8)) == hash((0, *(-2,) * 8))
    assert prefixes.find((-2,) * 8) is None
