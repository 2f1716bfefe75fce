"""Every part with a state that receives a batch resumes from a checkpoint."""

from dataclasses import replace

import torch
from every import every
from staged import alike, copied, entries, restored

from strop.catalogue import catalogue
from strop.method import part as parts
from strop.method.part import Result, Use

# The other kinds have tests of their own: their calls take more than a batch.
APART = ("sampling", "rollout", "curation", "control")
FOLDERS = {entry.folder for entry in catalogue.parts() if entry.folder not in APART}
ENTRIES = [e for e in entries(*sorted(FOLDERS)) if hasattr(e.load(), "init")]


def test_there_are_some():
    assert len(ENTRIES) > 3


@every("entry", ENTRIES)
def test_a_state_that_was_saved_goes_on_as_it_would_have(entry, stages, tmp_path):
    place = stages.of(entry)
    state = goes_on(place, tmp_path)
    if alike(state, place.part.init()):  # as the recipe has it, it keeps none: then by default
        place = replace(place, use=Use(entry.load()(), place.use.columns))
        state = goes_on(place, tmp_path)
    assert not alike(state, place.part.init())


def goes_on(place, tmp_path):
    """Its state after three steps, each of which goes as well from a saved one."""
    state = place.part.init()
    for step in (1, 2, 3):
        batch = place.batch(step, (4, 3, 2)).set(step=torch.tensor(step))
        before = copied(state)
        whole = place.call(batch, state, step=step)
        assert alike(state, before)
        loaded = place.call(batch, restored(state, tmp_path), step=step)
        assert alike(tuple(loaded), tuple(whole))
        state = after(place, batch, state, whole)
        assert alike(after(place, batch, restored(before, tmp_path), loaded), state)
    return state


def after(place, batch, state, outcome: Result):
    """The state after the step: what the call returned, then the part's own hooks."""
    state = state if outcome.state is None else outcome.state
    for hook in ("observe", "update"):
        if hasattr(place.part, hook):
            batch = parts.write(batch, place.use, outcome)
            state = parts.update(place.use, batch, state, hook)
    return state
