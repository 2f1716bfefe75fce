"""The completions server as a process of its own, which a test may stop, slow down or kill."""

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fakes.completions_server import Served, serve, worker
from strop.engines.local.engine import LocalEngine
from strop.training.learner import models


def serving(model: str, place: Path, dies_at: int, seconds: float) -> None:
    """Serve a model; `place` is the file that tells where.

    dies_at: the version of which it loads half, and is killed; -1: none. seconds: before an answer.
    """
    loaded = models.load(model)
    engine = LocalEngine(loaded.model, loaded.tokenizer, num_slots=8, context_length=loaded.context)

    def loading(served: Served, method: str, folder: str = "", version: int = 0) -> dict[str, Any]:
        if method == "strop_load_weights" and version == dies_at:
            own = loaded.model.state_dict()
            weights = load_file(f"{folder}/model.safetensors")
            for name in itertools.islice(weights, len(weights) // 2):
                own[name].copy_(weights[name])
            os.kill(os.getpid(), signal.SIGKILL)
        return worker(served, method, folder, version)

    def slowly(_: Any) -> None:
        time.sleep(seconds)

    number = len(loaded.tokenizer)
    with serve(engine, number, told="drawn", worker=loading, instead=slowly) as served:
        unfinished = place.with_suffix(".unfinished")
        unfinished.write_text(served.url)
        unfinished.rename(place)
        threading.Event().wait()
