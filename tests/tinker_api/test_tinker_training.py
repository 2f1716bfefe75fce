"""Runs on a server of Tinker's API and the same runs here: the same answers, gradients, weights.

The server trains all of the model's weights and samples as the local engine does, so both runs have
the same tokens once the local one uses the seeds that are sent to a server.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from models import Lab, save_model
from runs import Runner
from safetensors.torch import load_file
from served import KEY, Served, flat

from strop.engines.local.engine import LocalEngine
from strop.engines.sampling import seed_behind
from strop.training.learner import policy

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
SAME = (
    "reward", "loss", "grad_norm", "completions/mean_length", "advantage/abs_mean",
    "clip_ratio/region_mean", "num_tokens", "learning_rate", "groups/frac_rollouts_with_gradient",
)  # fmt: skip


@pytest.fixture
def server(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    with Served(lab.model, str(lab.model)) as found:
        yield found


@pytest.fixture
def seeds_as_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine here draws with the seeds that a server is sent."""
    plain = LocalEngine.start

    def start(engine: LocalEngine, id: int, request: Any, source: Any = None) -> None:
        sent = seed_behind(request, bits=31)
        plain(engine, id, dataclasses.replace(request, seed=sent), None)

    monkeypatch.setattr(LocalEngine, "start", start)


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Of each step here."""
    found: list[torch.Tensor] = []
    plain = policy.clipped_step

    def clipped_step(optimiser: Any, *options: Any) -> float:
        found.append(flat(p.grad for g in optimiser.param_groups for p in g["params"]))
        return plain(optimiser, *options)

    monkeypatch.setattr(policy, "clipped_step", clipped_step)
    return found


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def on(server: Served) -> dict[str, Any]:
    return {"kind": "tinker", "url": server.url}


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        # an on-policy gradient needs no look at the policy first, a clipped ratio does
        ("grpo", {"forward_backward": 2}),
        ("rloo", {"forward_backward": 2}),
        # one of its updates has groups of equal rewards alone: a step of the moments, as here
        ("grpo(num_minibatches=2, clip_high=0.05)", {"forward_backward": 4, "forward": 5}),
        # other weights on tokens, and tokens that are left out
        ("clip_cov(clip_cov_ratio=0.2, clip_cov_lb=0.01)", {"forward_backward": 4, "forward": 6}),
        # which asks for more answers where all of a prompt's are alike
        ("dapo(max_rounds=2)", {"forward_backward": 2}),
    ],
)
def test_as_here(
    lab: Lab, runner: Runner, server: Served, seeds_as_sent: None, gradients: list[torch.Tensor],
    tmp_path: Path, recipe: str, passes: dict[str, int],
) -> None:  # fmt: skip
    here, there = tmp_path / "here", tmp_path / "there"
    training = {"max_grad_norm": 0.7, "weight_decay": 0.1, "steps": 2, "save_every": 2}
    runner.whole(lab.raw(recipe, "even", training=training), here)
    runner.whole(lab.raw(recipe, "even", engine=on(server), training=training), there)
    for expected, found in zip(metrics(here), metrics(there), strict=True):
        for name in SAME:
            assert found.get(name) == pytest.approx(expected.get(name), rel=1e-4, abs=1e-6), name
    for number, (wanted, found) in enumerate(zip(gradients, server.newest.gradients, strict=True)):
        # Adam makes steps of a like size of gradients near 0, so weights part by and by
        assert (found - wanted).norm() <= (1e-3 if number else 2e-6) * wanted.norm()
    before, after = (flat(load_file(folder / "model.safetensors").values()) for folder in (
        lab.model, here / "checkpoints/step-000002"
    ))  # fmt: skip
    weights = server.newest.model.state_dict()
    there_now = flat(weights[name] for name in load_file(lab.model / "model.safetensors"))
    assert (there_now - after).norm() < 1e-3 * (after - before).norm()
    assert {name: server.calls[name] for name in passes} == passes
    assert os.listdir(there / "rollouts") == os.listdir(here / "rollouts")


def test_a_teacher_is_another_model_of_the_server(
    lab: Lab, runner: Runner, seeds_as_sent: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    teacher = save_model(tmp_path / "teacher", seed=1)
    here, there = tmp_path / "here", tmp_path / "there"
    taught = {"name": str(lab.model), "reference": str(teacher)}
    training = {"steps": 2, "save_every": 2}
    raw = lab.raw("on_policy_distillation", "even", model=taught, training=training)
    runner.whole(raw, here)
    with Served(lab.model, str(lab.model), {str(teacher): teacher}) as server:
        runner.whole({**raw, "engine": on(server)}, there)
    for expected, found in zip(metrics(here), metrics(there), strict=True):
        assert (found.keys() ^ expected.keys()) & set(SAME) == set()
        for name in expected.keys() & set(SAME):  # no signal of groups: it learns from no score
            assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
        assert found["reference/credit_mean"] == pytest.approx(
            expected["reference/credit_mean"], rel=1e-3
        )
    assert metrics(there)[-1]["grad_norm"] > 0
