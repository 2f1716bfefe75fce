"""Two processes with half of the answers each make the same updates as one with all of them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import forked
from models import Lab
from trainers import QUIET, make, trained, written

from strop.training.parallel import relaunched

RECIPES = ("grpo(aggregation='token-mean')", "clip_cov(clip_cov_ratio=0.2, clip_cov_lb=0.01)")
pytestmark = pytest.mark.filterwarnings(QUIET, "ignore:the recipe.s num_")


def train_both(environments: list[dict[str, str]], model: Path, out: Path) -> None:
    """Begin a copy of this process, which has TRL, for the first; be the second."""
    first = os.fork()
    train(environments[first != 0], model, out)
    if first == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0


def train(environment: dict[str, str], model: Path, out: Path) -> None:
    """What each process does, in the environment that torchrun gives it."""
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(os.open(out / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    for number, recipe in enumerate(RECIPES):
        trainer = make(
            model, out / str(number), recipe, rollout_func=written, num_iterations=2,
            per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4,
        )  # fmt: skip
        rows = trained(trainer)
        if trainer.accelerator.is_main_process:
            (out / f"{number}.json").write_text(json.dumps(rows))


def test_two_processes(lab: Lab, build: Any, tmp_path: Path) -> None:
    store = relaunched.new_store()
    shared = {"WORLD_SIZE": "2", **relaunched.started_by("127.0.0.1", store.port)}
    places = [{"RANK": str(n), "LOCAL_RANK": str(n), **shared} for n in range(2)]
    process = forked(train_both, places, lab.model, tmp_path)
    process.join(300)
    process.kill()  # one that hangs would outlive the test, and so would the other, which it misses
    assert process.exitcode == 0, (tmp_path / "said").read_text()[-3000:]
    for number, recipe in enumerate(RECIPES):
        found = json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8"))
        alone = trained(build(recipe, rollout_func=written, num_iterations=2, max_steps=4))
        for one, two in zip(alone, found, strict=True):
            for name in ("loss", "grad_norm", "entropy", "clip_ratio/region_mean", "loss/policy"):
                if name in one:
                    assert two[name] == pytest.approx(one[name], rel=2e-4, abs=2e-6), (recipe, name)
