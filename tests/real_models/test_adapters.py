"""Low-rank adapters: what is trained, what the reference is, what is saved, merged and refused."""

import builtins
import json
import shutil

import pytest
import torch
from families import FAMILIES, save
from models import save_model, without_times
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.api.inference import open_model
from strop.cli.export import export
from strop.head.head import check_head
from strop.support.errors import UserError
from strop.training import loop
from strop.training.learner import adapters, models
from strop.training.learner.adapters import Lora
from strop.training.record import checkpoint

LORA = Lora(rank=2, alpha=8)
STEPS = 4


def adapted(lab, recipe="grpo(beta=0.05)", **model):
    raw = lab.raw(recipe, reward="even", training={"steps": STEPS, "save_every": 2})
    raw["model"] |= {"lora_rank": 2, **model}
    return raw


@pytest.fixture(scope="module")
def finished(lab, tmp_path_factory):
    """A run of adapters with a reference policy, and what it saw."""
    from runs import Runner

    runner = Runner()
    run = runner.start(adapted(lab), tmp_path_factory.mktemp("lora") / "run")
    start = {name: p.detach().clone() for name, p in run.loaded.model.named_parameters()}
    watcher = runner.go(run)
    return run, start, watcher.seen


def test_only_the_adapters_move_and_their_rate_of_change_is_measured(finished):
    run, start, seen = finished
    for name, parameter in run.loaded.model.named_parameters():
        moved = not torch.equal(parameter, start[name])
        assert moved == ("lora_" in name), name
        assert parameter.requires_grad == ("lora_" in name), name
    assert all(line["grad_norm"] > 0 for line in seen)
    assert all(line["sampling/sampling_logp_difference/mean"] < 1e-4 for line in seen)


def test_the_reference_is_the_model_without_adapters(finished, lab):
    run, _, seen = finished
    reference = run.world.reference
    assert reference.model is run.loaded.model  # no second copy
    base = models.load(str(lab.model)).model
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        with run.loaded.without_adapter():
            assert torch.equal(run.loaded.model(ids).logits, base(ids).logits)
        assert not torch.allclose(run.loaded.model(ids).logits, base(ids).logits, atol=1e-4)
    # at the first step policy and reference are one, later the penalty sees them part
    kl = [line["kl"] for line in seen]
    assert kl[0] == pytest.approx(0, abs=1e-7)
    assert max(map(abs, kl[1:])) > 1e-5


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_checkpoint_is_an_adapter_that_peft_reads(finished, lab):
    run, _, _ = finished
    place = checkpoint.newest(run.checkpoints)
    names = {path.name for path in place.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "trainer.pt"} <= (
        names
    )
    assert "model.safetensors" not in names
    settings = json.loads((place / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (2, 4)
    assert settings["base_model_name_or_path"] == str(lab.model)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(lab.model), place)
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        assert torch.equal(theirs.eval()(ids).logits, run.loaded.model(ids).logits)
    assert AutoTokenizer.from_pretrained(place).decode([3, 4]) == "01"


def test_a_broken_off_run_goes_on_exactly(finished, lab, runner, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run = runner.start(adapted(lab), folder)
    real = loop.train_step

    def breaking(world, algorithm, state, step, tokens):
        if step == 4:
            raise KeyError(step)
        return real(world, algorithm, state, step, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", breaking)
        with pytest.raises(KeyError):
            runner.go(run)
    again = runner.resume(folder)
    assert again.done == 2
    runner.go(again)
    whole = finished[0]
    assert without_times(folder) == without_times(whole.record.folder)
    one, two = (
        load_file(checkpoint.newest(each.checkpoints) / adapters.WEIGHTS) for each in (again, whole)
    )
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_runs_and_bare_adapters_are_sampled_from(finished):
    run, _, _ = finished
    ids = torch.arange(3, 12)[None]
    place = checkpoint.newest(run.checkpoints)
    for source in (run.record.folder, place):
        subject = open_model(str(source), task="countdown", trust=True)
        try:
            with torch.no_grad():
                ours = subject.loaded.model(ids).logits
                assert torch.equal(ours, run.loaded.model(ids).logits)
            assert len(subject.answer("1+2:", 2, 0)) == 2
        finally:
            subject.services.close()


def test_the_exported_model_needs_no_adapter(finished, tmp_path, capsys):
    run, _, _ = finished
    target = tmp_path / "merged"
    export(str(run.record.folder), target, step=0, dtype="")
    assert f"is in {target}" in capsys.readouterr().out
    assert not adapters.is_adapter(target)
    merged = AutoModelForCausalLM.from_pretrained(target).eval()
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            merged(ids).logits, run.loaded.model(ids).logits, atol=1e-5, rtol=1e-5
        )
    with pytest.raises(UserError, match="exists: give the name of a new folder"):
        export(str(run.record.folder), target, step=0, dtype="")


# Families that do not take adapters of all layers, and why.
REFUSED = {
    "nemotron_h": "'out_proj' is incompatible",  # Mamba's last projection
    "falcon_h1": "'out_proj' is incompatible",
    "zamba": "share their weight",  # its attention layers are one
    "zamba2": "Zamba2MambaDecoderLayer",  # a layer's place, '0', is the name of a projection too
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_adapters_and_the_head_still_fits(family, tmp_path):
    place, lora = save(family, tmp_path / "model"), LORA
    if family in REFUSED:
        with pytest.raises(UserError, match=rf"model\.lora_targets: .*{REFUSED[family]}"):
            models.load(str(place), lora=lora)
        targets = ("in_proj",) if family == "zamba" else ("in_proj", "q_proj", "v_proj")
        lora = Lora(rank=2, alpha=8, targets=targets)
    loaded = models.load(str(place), lora=lora, seed=3)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    check_head(loaded.model)
    check_head(loaded.adapter)  # PEFT's wrapping is looked through
    trained = {name for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert not any(word in name for name in trained for word in ("lm_head", "embed", "wte"))


def test_the_start_depends_on_the_seed_alone(lab):
    def start(seed):
        torch.rand(3)
        model = models.load(str(lab.model), lora=LORA, seed=seed).model
        return [p.detach() for name, p in model.named_parameters() if "lora_A" in name]

    state = torch.get_rng_state()
    one, two, other = start(1), start(1), start(2)
    torch.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_adapters_of_a_bfloat16_model_are_float32(lab):
    loaded = models.load(str(lab.model), dtype="bfloat16", lora=LORA)
    for name, parameter in loaded.model.named_parameters():
        assert parameter.dtype == (torch.float32 if "lora_" in name else torch.bfloat16)
    assert loaded.model.dtype == torch.bfloat16


def test_only_the_targets_get_adapters(lab):
    lora = Lora(2, targets=("q_proj", "v_proj"))
    model = models.load(str(lab.model), lora=lora).model
    touched = {name.split(".lora_")[0] for name, _ in model.named_parameters() if "lora_" in name}
    assert {name.rpartition(".")[2] for name in touched} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("target", ["q_prj", "lm_head", "embed_tokens"])
def test_targets_that_cannot_be_are_refused(target, lab):
    with pytest.raises(UserError, match=rf"no layer '{target}'; choose from .*q_proj"):
        models.load(str(lab.model), lora=Lora(2, targets=(target,)))


def test_without_peft_the_extra_is_named(lab, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name == "peft":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'strop\[lora\]'"):
        models.load(str(lab.model), lora=LORA)


def test_an_adapter_is_no_model_to_begin_with(finished, lab, runner, tmp_path):
    place = checkpoint.newest(finished[0].checkpoints)
    with pytest.raises(UserError, match="is an adapter, not a whole model: merge it first"):
        runner.start(lab.raw(model={"name": str(place)}), tmp_path / "run")


def test_adapters_that_do_not_fit_are_refused(finished, tmp_path):
    place = tmp_path / "step"
    shutil.copytree(checkpoint.newest(finished[0].checkpoints), place)
    other = save_model(tmp_path / "other", hidden=16)
    with pytest.raises(UserError, match="does not fit the model"):
        models.load(str(other), adapter=str(place))
    wider = models.load(str(other), lora=LORA)
    with pytest.raises(UserError, match="other layers or another rank"):
        wider.load_weights(place)
    (place / adapters.WEIGHTS).write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be read"):
        wider.load_weights(place)
    with pytest.raises(UserError, match="holds a whole model, the run trains an adapter"):
        wider.load_weights(other)
