"""Garbage is looked for rarely while a command begins, and as before afterwards."""

import gc

import pytest
from commands import Strop

from strop.support.garbage_collection import RARELY, beginning, loaded
from strop.support.stopping import settled


def test_until_everything_is_loaded():
    usual = gc.get_threshold()
    with beginning():
        assert gc.get_threshold() == (RARELY, *usual[1:])
        loaded()
        assert gc.get_threshold() == usual
        loaded()
    assert gc.get_threshold() == usual
    with pytest.raises(KeyError), beginning():
        raise KeyError
    assert gc.get_threshold() == usual


def test_what_is_loaded_is_passed_over_until_the_command_ends():
    kept = gc.get_freeze_count()
    gc.unfreeze()
    try:
        with beginning():
            assert gc.get_freeze_count() == 0
            loaded()
            assert gc.get_freeze_count() > 1000
        assert gc.get_freeze_count() == 0
    finally:
        if kept:
            gc.freeze()


def test_what_a_longer_lived_process_passes_over_stays_so():
    gc.freeze()
    with beginning():
        kept = gc.get_freeze_count()
        cycle: list[object] = []
        cycle.append(cycle)
        loaded()
        assert kept / 2 < gc.get_freeze_count() <= kept  # some may have ended meanwhile
    assert kept / 2 < gc.get_freeze_count() <= kept


def test_steps_are_taken_as_usual():
    usual = gc.get_threshold()
    with beginning(), settled():
        assert gc.get_threshold() == usual
    assert gc.get_threshold() == usual


def test_a_command_leaves_it_as_it_was(strop: Strop):
    usual = gc.get_threshold()
    assert strop("recipes", "--json").code == 0
    assert gc.get_threshold() == usual
