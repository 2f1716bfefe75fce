"""The behaviour of every sampling part: draws from the pool, in the requested number."""

import pytest
from every import every
from staged import alike, copied, entries, restored

from strop.method import part as parts
from strop.method.part import Draw

ENTRIES = entries("sampling")
every_part = every("entry", ENTRIES)
FIRST = [e for e in ENTRIES if "draws" not in e.reads]
KEEPING = [e for e in ENTRIES if hasattr(e.load(), "init")]


def drawn(place, state=None, seed=0, num_wanted=None, step=1):
    """The outcome of the part after those before it in its method; the draws it was given."""
    given: tuple[Draw, ...] = ()
    chains = place.chains(state, seed, step)
    tracked = chains.tracked(place.algorithm.sampling)
    handed = {"pool": place.world.pool, "num_wanted": num_wanted, "tracked": tracked}
    for use in place.before:
        given = chains.call("sampling", use, None, draws=given, **handed).value
    before = copied((given, state))
    outcome = chains.call("sampling", place.use, None, draws=given, **handed)
    assert alike((given, state), before)
    return outcome, given


@every_part
@pytest.mark.parametrize("num_wanted", [None, 1, 5])
def test_draws_are_of_the_pool(entry, stages, num_wanted):
    place = stages.of(entry)
    outcome, given = drawn(place, num_wanted=num_wanted)
    written = set(parts.writes(place.use)).union(*(draw.columns for draw in given))
    written |= set(getattr(place.part, "carries", ()))  # for the rollout part alone, it says
    assert outcome.value
    for draw in outcome.value:
        assert isinstance(draw, Draw)
        assert draw.uid in place.world.pool
        assert draw.num_rollouts > 0
        assert set(draw.columns) <= written
        assert set(parts.writes(place.use)) <= set(draw.columns)


@every("entry", FIRST)
@pytest.mark.parametrize("num_wanted", [None, 1, 5, 40])
def test_the_first_part_draws_as_many_as_are_asked_for(entry, stages, num_wanted):
    """Also more than there are; by default its own number."""
    place = stages.of(entry)
    found = drawn(place, num_wanted=num_wanted)[0].value
    assert len(found) == (num_wanted or place.part.num_prompts)
    assert {draw.num_rollouts for draw in found} == {place.part.num_rollouts}


@every_part
def test_same_seed_same_result(entry, stages):
    place = stages.of(entry)
    assert alike(drawn(place, seed=3)[0], drawn(place, seed=3)[0])


@every("entry", KEEPING)
def test_a_state_that_was_saved_goes_on_as_it_would_have(entry, stages, tmp_path):
    place = stages.of(entry)
    state = place.part.init()
    for step in (1, 2, 3):
        whole, _ = drawn(place, state, step=step)
        loaded, _ = drawn(place, restored(state, tmp_path), step=step)
        assert alike(loaded, whole)
        state = whole.state
        for hook in ("observe", "update"):
            if hasattr(place.part, hook):
                state = parts.update(place.use, place.batch(step), state, hook)
    assert not alike(state, place.part.init())
