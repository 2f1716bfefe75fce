"""The program of the collector process: it makes a world of its own and runs `CollectorLoop`."""

import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch

from strop.method.algorithm import Algorithm
from strop.method.tensors import checked
from strop.support.devices import use_deterministic_operators
from strop.support.errors import RunStopped, UserError, plain_name
from strop.support.garbage_collection import beginning
from strop.support.output import Lasting
from strop.training.collect.messages import ALIVE, Broken
from strop.training.collect.process import CollectorLoop, Mailbox, Over
from strop.training.loading import load_model
from strop.training.settings.config import RunConfig
from strop.training.setup import load_prompts, make_world


def main(channel: socket.socket) -> None:
    """Collect for the trainer at the other end of a socket, until it is gone or all is done."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer decides
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
    post = Mailbox(channel)
    sys.path[:] = post.begin.search
    try:
        try:
            with beginning():
                _work(post)
        except (UserError, RunStopped) as error:
            post.send(Broken(str(error), plain_name(error)))
        except Over:
            raise
        except BaseException:
            post.send(Broken(traceback.format_exc()))
        while True:
            post.wait()  # the trainer ends this process; so it never looks like a crash
    except Over:
        os._exit(0)


def _work(post: Mailbox) -> None:
    begin = post.begin
    torch.set_num_threads(begin.threads)
    config = RunConfig(**begin.config)
    if config.training.full_determinism:
        use_deterministic_operators()
    method = config.build()
    assert isinstance(method, Algorithm), "the trainer refuses phases"
    task = load_prompts(config.data, config.reward, heldout=False)
    world = make_world(config, method, load_model(config), task, learns=False)
    try:
        if begin.store is not None:
            folder, owner = begin.store
            world.services.stores.open(Path(folder), owner)
            if task.live is not None:
                world.services.live.max_staleness = begin.max_staleness
                world.services.live.open(Path(folder).parent)
        post.send(ALIVE)
        with checked(config.training.debug):
            CollectorLoop(post, world, method).go()
    finally:
        world.services.close()
        world.engine.close()
