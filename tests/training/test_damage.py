"""Checkpoints and models with damaged files: the error names them, and none is half used."""

import json
import pickle
import re
import shutil

import pytest
import torch
from commands import Strop
from fakes.models import tiny
from models import save_model, without_times
from safetensors.torch import load_file, save_file

from strop.support.errors import UserError
from strop.training.learner import models
from strop.training.record import checkpoint


@pytest.fixture
def strop(monkeypatch, capsys):
    return Strop(monkeypatch, capsys)


@pytest.fixture(scope="module")
def done(lab, tmp_path_factory):
    """A run of three steps with a checkpoint each."""
    from runs import Runner

    folder = tmp_path_factory.mktemp("done") / "run"
    Runner().whole(lab.raw(training={"save_every": 1}), folder)
    return folder


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def empty(path):
    path.write_bytes(b"")


def pickled(path):
    path.write_bytes(pickle.dumps(load_file(path)))


def without_a_tensor(path):
    tensors = load_file(path)
    tensors.popitem()
    save_file(tensors, path, metadata={"format": "pt"})


DAMAGE = [
    (truncated, "model.safetensors", "has [0-9]+ of [0-9]+ bytes"),
    (pickled, "model.safetensors", "has [0-9]+ of [0-9]+ bytes"),
    (without_a_tensor, "model.safetensors", "has [0-9]+ of [0-9]+ bytes"),
    (zeroed, "model.safetensors", "has changed"),
    (zeroed, "trainer.pt", "has changed"),
    (empty, "tokenizer.json", "has 0 of [0-9]+ bytes"),
    (empty, "files.json", "is damaged"),
    (lambda path: path.unlink(), "model.safetensors", "is missing"),
    (lambda path: path.unlink(), "trainer.pt", "is missing"),
]


@pytest.mark.parametrize(("damage", "name", "what"), DAMAGE)
def test_a_damaged_checkpoint_names_the_one_before(damage, name, what, done, runner, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    damage(folder / "checkpoints/step-000003" / name)
    match = rf"step-000003 cannot be read: {name} {what}; --step 2 takes the one before"
    with pytest.raises(UserError, match=match):
        runner.resume(folder)
    assert (folder / "checkpoints/step-000003").is_dir()


def test_the_checkpoint_of_step_0_is_reached_without_the_damaged_one(done, tmp_path):
    places = [tmp_path / f"step-{step:06d}" for step in (0, 1)]
    for place in places:
        shutil.copytree(done / "checkpoints/step-000003", place)
    zeroed(places[1] / "trainer.pt")
    with pytest.raises(UserError, match="move its folder away, and the one before, of step 0, is"):
        checkpoint.at(tmp_path)
    shutil.rmtree(places[1])
    assert checkpoint.at(tmp_path) == places[0]


def test_a_run_goes_on_from_the_checkpoint_before(done, strop, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    zeroed(folder / "checkpoints/step-000003/trainer.pt")
    for words in (["train", "--resume", folder], ["eval", folder], ["export", folder, "other"]):
        result = strop(*words)
        assert result.code == 2
        assert result.err.count("\n") == 1
        assert "trainer.pt has changed; --step 2 takes the one before" in result.err
    result = strop("train", "--resume", folder, "--step", "2")
    assert result.code == 0, result.err
    assert without_times(folder) == without_times(done)
    one, two = (f / "checkpoints/step-000003/model.safetensors" for f in (folder, done))
    assert one.read_bytes() == two.read_bytes()
    result = strop("train", "--step", "2")
    assert result.code == 2
    assert "--resume" in result.err


def test_recorded_steps_without_their_checkpoints_are_not_trained_over(
    done, runner, strop, tmp_path
):
    """Saved each step: three steps were not recorded without a checkpoint. Saved at the end alone:
    the report is written behind it, and a run that was killed before has neither. What counts is
    when it was to be saved, not when it will be.
    """
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "metrics.jsonl").read_bytes()
    result = strop("train", "--resume", folder, "training.save_every=0")
    assert result.code == 2
    assert "has recorded 3 steps and has no checkpoint to resume from" in result.err
    assert f"strop train --config {folder}/config.toml --out OTHER" in result.err
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("save_every = 1", "save_every = 0"))
    (folder / "report.html").touch()
    with pytest.raises(UserError, match="has no checkpoint to resume from"):
        runner.resume(folder)
    assert (folder / "metrics.jsonl").read_bytes() == before
    (folder / "report.html").unlink()
    assert strop("train", "--resume", folder, "training.save_every=1").code == 0
    assert without_times(folder) == without_times(done)


def test_the_score_before_training_is_that_of_step_0(done, strop, tmp_path):
    """A run that was killed before its first checkpoint has the validation before step 1."""
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    shutil.rmtree(folder / "checkpoints")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    first = {"eval/validation/pass@1": 0.125, "step": 0}
    (folder / "metrics.jsonl").write_text("\n".join([json.dumps(first), lines[0]]) + "\n")
    result = strop("train", "--resume", folder)
    assert result.code == 0, result.err
    assert "eval/validation/pass@1: 0.125 -> " in result.out


@pytest.mark.parametrize("damage", [truncated, pickled, zeroed, without_a_tensor])
def test_damage_shows_without_the_sums_too(damage, done, runner, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    (folder / "checkpoints/step-000003/files.json").unlink()
    damage(folder / "checkpoints/step-000003/model.safetensors")
    with pytest.raises(UserError, match=r"step-000003 cannot be loaded: .*; --step 2 takes"):
        runner.resume(folder)


def test_a_checkpoint_without_sums_is_said_to_be_unchecked(done, runner, strop, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    place = folder / "checkpoints/step-000003"
    assert checkpoint.unchecked(place) == []
    (place / "files.json").unlink()
    told = r"step-000003 has no files.json: whether its files were changed later cannot be"
    run = runner.resume(folder)
    assert re.search(told, run.world.services.notes[-1])
    run.close()
    result = strop("sample", folder, "1+1:", "-n", "1", "--trust-files")
    assert result.code == 0
    assert re.search(rf"note: .*{told}", result.err)


def edited(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_model_with_missing_or_surplus_tensors_is_refused(tmp_path):
    folder = save_model(tmp_path / "model")
    name = "model.layers.1.mlp.up_proj.weight"
    edited(folder, lambda tensors: tensors.update({"model.extra.weight": torch.ones(2)}))
    with pytest.raises(UserError, match=r"its weights have too much: model\.extra\.weight"):
        models.load(str(folder))
    edited(folder, lambda t: (t.pop("model.extra.weight"), t.pop(name)))
    with pytest.raises(UserError, match=rf"its weights lack: {name}"):
        models.load(str(folder))


def test_an_attention_that_a_model_lacks_names_the_option(tmp_path):
    place = save_model(tmp_path / "model")
    tiny("mamba", "eager", torch.float32).save_pretrained(place)
    with pytest.raises(UserError, match=r"no such attention .*: set model\.attention=eager"):
        models.load(str(place))


@pytest.mark.parametrize("damage", [truncated, pickled, empty])
def test_a_model_that_cannot_be_read_is_named(damage, tmp_path):
    folder = save_model(tmp_path / "model")
    damage(folder / "model.safetensors")
    with pytest.raises(UserError, match="cannot load the model"):
        models.load(str(folder))


def test_code_beside_a_model_is_neither_run_nor_asked_for(tmp_path, monkeypatch):
    folder, ran = save_model(tmp_path / "model"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    for load in (models.load, models.skeleton):
        with pytest.raises(UserError, match="strop runs no such code"):
            load(str(folder))
    assert not ran.exists()
