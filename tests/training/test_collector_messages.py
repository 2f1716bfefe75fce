"""Messages between the trainer and the collecting process, also unreadable ones."""

import pickle
import socket
import time
from types import SimpleNamespace

import pytest
import torch

from strop.method import notation
from strop.support import guarded_process
from strop.training import collector_process
from strop.training.collect import process
from strop.training.collect.asynchronous import DRAWN, LOADING_SECONDS, AsynchronousCollector, Box
from strop.training.collect.messages import Begin, Broken, Trained
from strop.training.collect.process import Mailbox, Over
from strop.training.parallel.ranks import Ranks
from strop.training.settings import config

UNREADABLE = b"cno_such_module\nThing\n."  # a pickle of a class that no process finds


def test_a_letter_that_the_trainer_cannot_read_is_no_silence():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        box = Box(ours)
        guarded_process.send(theirs, UNREADABLE)
        found = box.next(20)
        assert isinstance(found, Broken)
        assert "No module named 'no_such_module'" in found.text
        theirs.close()
        assert box.next(20) is None
        box.close()


def test_silence_while_loading_is_given_more_time_and_named_by_it():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        box = Box(ours)
        assert (box.patience(600), box.patience(4000)) == (LOADING_SECONDS, 4000)
        box.last_received = time.monotonic()
        assert box.patience(600) == 600
        box.close()


def test_a_letter_that_the_process_cannot_read_ends_it(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "000000").write_text("unread")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guarded_process.send(ours, pickle.dumps(Begin({}, 1, {}, 1, 1, str(folder))))
        post = Mailbox(theirs)
        assert post.take() == (None, [])
        guarded_process.send(ours, UNREADABLE)
        while not post.failure:
            post.wait()
        with pytest.raises(RuntimeError, match="no_such_module"):
            post.take()
        ours.close()  # as when the trainer was killed
        while not post.over:
            time.sleep(0.01)
        assert not folder.exists()
        with pytest.raises(Over):
            post.wait()


def test_what_arrives_while_the_process_is_busy_ends_its_next_wait(monkeypatch):
    monkeypatch.setattr(process, "ALIVE_SECONDS", 30.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guarded_process.send(ours, pickle.dumps(Begin({}, 1, {}, 1, 1, "")))
        post = Mailbox(theirs)
        guarded_process.send(ours, pickle.dumps(Trained(1, None)))
        while not post.trained:  # as while it loads weights that came before
            time.sleep(0.01)
        started = time.monotonic()
        post.wait()
        assert time.monotonic() - started < 15
        assert post.take() == (None, [Trained(1, None)])


def test_a_process_hears_what_was_drawn_and_has_ended_of_its_step_and_later_ones(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    policy = SimpleNamespace(ranks=Ranks(), shell=None, model=torch.nn.Linear(2, 1))
    algorithm = notation.recipe("grpo").algorithms[0]
    collector = AsynchronousCollector(config.make({}), algorithm, policy, max_staleness=3)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        collector.other = SimpleNamespace(
            launch=lambda module: ours, leave=lambda seconds: None, end=lambda: None
        )
        collector.held = {2: {"a": "old"}, 3: {"b": "now", "c": "too"}, 4: {"d": "later"}}
        state = {"sampling.x": 1, "advantage.y": 2, DRAWN: {2: ("a",), 3: ("b",), 5: ("e",)}}
        collector._start(3, state)
        begin, weights = (pickle.loads(guarded_process.receive(theirs)) for _ in range(2))
        collector.close()
    assert (begin.step, begin.state) == (3, {"sampling.x": 1})
    assert begin.held == {3: ["now", "too"], 4: ["later"]}
    assert begin.drawn == {3: ("b",), 5: ("e",)}
    assert weights.version == 2


def test_the_process_takes_deterministic_operators_as_the_trainer_does(monkeypatch):
    found = []

    def look(*_, **__):
        found.append(torch.are_deterministic_algorithms_enabled())
        raise Over

    monkeypatch.setattr(collector_process, "load_prompts", look)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        for on in (False, True):
            settings = config.make({"recipe": "grpo", "training": {"full_determinism": on}})
            begin = Begin(settings.model_dump(), 1, {}, 1, 1, "")
            with pytest.raises(Over):
                collector_process._work(SimpleNamespace(begin=begin))
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == [False, True]
