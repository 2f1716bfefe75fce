"""Runs on a server of Tinker's API: what they save and resume from, and their error messages."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from models import Lab
from runs import Runner
from served import KEY, Served, Trained, flat

from strop.api.export import write
from strop.api.inference import open_model, scored
from strop.support.errors import RunStopped, UserError

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def server(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    with Served(lab.model, str(lab.model)) as found:
        yield found


def raw(lab: Lab, server: Served, recipe: str = "grpo(beta=0.1)", **sections: Any) -> Any:
    return lab.raw(recipe, engine={"kind": "tinker", "url": server.url}, **sections)


def test_a_run_goes_on_as_it_would_have(
    lab: Lab, runner: Runner, server: Served, tmp_path: Path
) -> None:
    """Weights, moments, sampler and reference are those of a run that was never interrupted, and
    its checkpoint is evaluated and sampled."""
    settings = {"every": 2, "num_samples": 2}, {"steps": 2, "save_every": 1, "lr": 1e-2}
    evaluation, training = settings
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    runner.whole(raw(lab, server, evaluation=evaluation, training=training), whole)
    wanted = flat(server.newest.model.parameters())
    training = {**training, "steps": 1}
    runner.whole(raw(lab, server, evaluation=evaluation, training=training), cut)
    runner.go(runner.resume(cut, training={"steps": 2}))
    assert torch.equal(flat(server.newest.model.parameters()), wanted)
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").open(encoding="utf-8")]
        for folder in (whole, cut)
    ]
    for expected, found in zip(lines[0][1:], lines[1][1:], strict=True):
        for name in ("reward", "loss", "grad_norm", "kl"):
            assert found[name] == expected[name], name
    last = {n: x for n, x in lines[0][-1].items() if n.startswith("eval/")}
    assert last.items() <= lines[1][-1].items()
    with open_model(str(cut), trust=True) as subject:
        again = scored(subject, "validation", 0, 2, (1,), seed=0).estimates
        assert again["mean@n"].value == last["eval/validation/mean@n"]
    with open_model(str(lab.model), engine=f"tinker(url='{server.url}')", scored=False) as start:
        assert len(start.answer("1+1:", 2, 0)) == 2
    with pytest.raises(UserError, match="tinker checkpoint download tinker://"):
        write(str(tmp_path / "cut"), tmp_path / "model", 0, "")


def test_mistakes_are_told_before_the_run(
    lab: Lab, runner: Runner, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(recipe: str = "grpo", **changes: Any) -> None:
        runner.start(raw(lab, server, recipe) | changes, tmp_path / "run")

    with pytest.raises(UserError, match=r"Tinker cannot host this recipe: it reads entropy_T"):
        start("entropy_bonus")
    with pytest.raises(UserError, match="it trains a critic"):
        start("ppo_clip")
    with pytest.raises(UserError, match=r"samples at temperature 0.7"):
        start(algorithm={"rollout.temperature": 0.7})
    with pytest.raises(UserError, match=r"has no model '.*tiny.*'; it has .*model"):
        start(model={"name": "tiny"}, data={"task": "countdown"})
    with pytest.raises(UserError, match=r"cannot have model.lora_alpha: the server sets it"):
        start(model={"name": str(lab.model), "lora_alpha": 8})
    with pytest.raises(UserError, match=r"no server at http://127.0.0.1:9: .*check engine.url"):
        start(engine={"kind": "tinker", "url": "http://127.0.0.1:9"})
    monkeypatch.setenv("TINKER_API_KEY", "tml-other")
    with pytest.raises(UserError, match=f"{server.url} refuses the key: .*this key is unknown"):
        start()
    monkeypatch.setenv("TINKER_API_KEY", "other")
    with pytest.raises(UserError, match="must start with the 'tml-' prefix"):
        start()
    assert not (tmp_path / "run").exists()


def test_a_server_that_fails_ends_the_run_with_its_words(
    lab: Lab, runner: Runner, server: Served, tmp_path: Path
) -> None:
    run = runner.start(raw(lab, server, training={"save_every": 1}), tmp_path / "run")

    def fail(_: Any) -> None:
        server.refuses["optim_step"] = (422, "no step today")

    with pytest.raises(RunStopped, match=f"{server.url}: .*no step today"):
        runner.go(run, at_step=fail)
    assert (tmp_path / "run/checkpoints/step-000001/tinker.json").is_file()
    server.refuses = {"asample": (422, "no answers today")}
    with pytest.raises(UserError, match=r"all 8 requests failed, the first: .*no answers today"):
        runner.go(runner.resume(tmp_path / "run"))
    server.refuses, server.saved = {}, {}
    with pytest.raises(UserError, match=r"no tinker://.*step-000001"):
        runner.resume(tmp_path / "run")


def test_a_server_with_another_loss_is_found_out(
    lab: Lab, runner: Runner, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient would be another one, and nothing else would show it."""
    monkeypatch.setattr(Trained, "divides", True)
    with pytest.raises(RunStopped, match=r"it tells .*: its gradient is not the recipe's"):
        runner.whole(raw(lab, server), tmp_path / "run")
