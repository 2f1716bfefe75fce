"""Garbage is collected rarely while a command starts, and as before afterwards."""

import gc
from contextlib import nullcontext

import pytest
from commands import Strop

from strop.support import garbage_collection
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


def test_what_is_loaded_is_passed_over_until_the_command_ends(monkeypatch):
    monkeypatch.setattr(garbage_collection, "_others", [])
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


def test_what_a_longer_lived_process_passes_over_stays_so(monkeypatch):
    monkeypatch.setattr(garbage_collection, "_others", [])
    gc.freeze()
    with beginning():
        kept = gc.get_freeze_count()
        cycle: list[object] = []
        cycle.append(cycle)
        loaded()
        assert kept / 2 < gc.get_freeze_count() <= kept  # some may have ended meanwhile
    assert kept / 2 < gc.get_freeze_count() <= kept


def test_so_it_does_while_steps_are_taken():
    gc.freeze()
    kept = gc.get_freeze_count()
    new = [[] for _ in range(1000)]
    with beginning(), settled():
        assert kept / 2 < gc.get_freeze_count() < kept + len(new)
    with settled():
        assert kept / 2 < gc.get_freeze_count() < kept + len(new)
    assert kept / 2 < gc.get_freeze_count() <= kept


def test_what_was_preloaded_for_a_command_and_what_it_loads_are_passed_over_by_steps(monkeypatch):
    gc.freeze()
    monkeypatch.setattr(garbage_collection, "_preloaded", [True])
    try:
        for command in (beginning, nullcontext):
            with command():
                kept = gc.get_freeze_count()
                new = [[] for _ in range(1000)]
                with settled():
                    assert gc.get_freeze_count() >= kept + len(new)
    finally:
        gc.freeze()


def test_steps_are_taken_as_usual():
    usual = gc.get_threshold()
    with beginning(), settled():
        assert gc.get_threshold() == usual
    assert gc.get_threshold() == usual


def test_a_command_leaves_it_as_it_was(strop: Strop):
    usual = gc.get_threshold()
    assert strop("recipes", "--json").code == 0
    assert gc.get_threshold() == usual
