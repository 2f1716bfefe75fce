"""What goes between the trainer and the process that collects, where it cannot be read."""

import pickle
import socket
import time

import pytest

from strop.support import guarded_process
from strop.training.collect.asynchronous import Box
from strop.training.collect.messages import Begin, Broken
from strop.training.collect.process import Mailbox, Over

UNREADABLE = b"cno_such_module\nThing\n."  # a pickle of what no process finds


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
