"""A prefix of several contexts computed once: columns and gradients as when computed for each."""

import pytest
import torch
from families import FAMILIES, RECURRENT, build
from models import exact_norms

from strop.batch.batch import from_padded
from strop.support.errors import UserError
from strop.training.learner import prefix_sharing
from strop.training.learner.adapters import Lora, add
from strop.training.learner.critic import make_critic
from strop.training.learner.policy import Policy

NAMES = ("logp_T", "entropy_T", "mean_logp_T")
SHARING = sorted(FAMILIES.keys() - RECURRENT.keys())


@pytest.fixture
def batch():
    """Three prompts with six ragged answers each; some of those begin alike or are equal."""
    rng = torch.Generator().manual_seed(3)
    ids_BL = torch.randint(24, (18, 30), generator=rng)
    mask_BL = torch.zeros(18, 30, dtype=torch.bool)
    for row in range(18):
        prompt = 8 + 2 * (row // 6)
        ids_BL[row, :prompt] = ids_BL[row - row % 6, :prompt]
        mask_BL[row, prompt : prompt + int(torch.randint(1, 12, (), generator=rng))] = True
    ids_BL[1], mask_BL[1] = ids_BL[0], mask_BL[0]
    ids_BL[3, :14] = ids_BL[2, :14]
    ids_BL[9, :13] = ids_BL[8, :13]
    return from_padded({"id_T": ids_BL}, mask_BL)


def adjoints(batch, dtype):
    rng = torch.Generator().manual_seed(2)
    return {name: torch.randn(batch.size("T"), generator=rng).to(dtype) for name in NAMES}


def pushed(policy, batch, dtype):
    """Gradients of every weight from fixed adjoints, pushed in micro-batches."""
    batch = batch.set(**adjoints(batch, dtype))
    micros = policy.micro_batches(batch)
    assert len(micros) > 1
    for index_B in micros:
        micro = batch.take(index_B)
        known = {name: micro[name][micro["mask_T"]] for name in NAMES}

        def slices(rows, _, known=known):
            return {name: value[rows] for name, value in known.items()}

        policy.push(micro, NAMES, slices, False, 0.7)
    weights = policy.model.named_parameters()
    found = {n: p.grad.clone() for n, p in weights if p.grad is not None}
    policy.model.zero_grad()
    return found


def agree(model, batch, tolerance, dtype=torch.float32):
    """Columns and gradients of both ways are equal, up to a share of the largest."""
    plain, shared = (Policy(model, 90, share=share) for share in ("off", "on"))
    assert sum(map(len, shared.micro_batches(batch))) == batch.size("B")
    expected, found = (p.columns(batch, NAMES, 0.7) for p in (plain, shared))
    for name in NAMES:
        assert float((found[name] - expected[name]).abs().max()) < tolerance
        assert float(expected[name].abs().max()) > 0.1
    expected, found = (pushed(p, batch, dtype) for p in (plain, shared))
    assert expected.keys() == found.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-2
    for name, gradient in expected.items():
        assert float((found[name] - gradient).abs().max()) < tolerance * largest, name


@pytest.mark.parametrize("family", SHARING)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_agrees_with_each_context_on_its_own(family, checkpointing, batch):
    model = build(family)
    assert prefix_sharing.why_not(model) == ""
    if checkpointing:
        newer = getattr(model, "activation_checkpointing_enable", None)
        (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})
        model.train()
        for dropout in (m for m in model.modules() if isinstance(m, torch.nn.Dropout)):
            dropout.p = 0.0
    agree(model, batch, 1e-5)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", SHARING)
def test_agrees_in_float64(family, batch, monkeypatch):
    exact_norms(monkeypatch)
    agree(build(family, torch.float64), batch, 1e-11, torch.float64)


@pytest.mark.parametrize("family", ["qwen3-tied", "gemma3-softcap"])
def test_agrees_with_adapters(family, batch):
    model = build(family)
    wrapped = add(model, Lora(2, 4, ()), seed=0)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(1))
    agree(model, batch, 1e-5)


@pytest.mark.parametrize("family", ["qwen3-tied", "gemma3-softcap"])
def test_values_of_a_critic_agree(family, batch):
    model, columns = build(family), ("value_T", "value_after_T")
    found = []
    for share in ("off", "on"):
        critic = make_critic(
            columns, Policy(model, 90, share=share), hidden_size=8, lr=0.1, betas=(0.9, 0.95),
            max_grad_norm=1.0, seed=0,
        )  # fmt: skip
        torch.nn.init.normal_(critic.heads.outer, generator=torch.Generator().manual_seed(4))
        values = critic.columns(batch, columns)
        ones = {name: torch.ones(int(batch["mask_T"].sum())) for name in columns}
        critic.push(batch, columns, lambda rows, _, ones=ones: ones)
        found.append({**values, "inner": critic.heads.inner.grad})
    for name, value in found[0].items():
        scale = float(value.abs().max())
        assert scale > 0.1
        assert float((found[1][name] - value).abs().max()) < 1e-5 * scale


def test_models_that_cannot_say_why():
    gemma = build("gemma3-softcap")
    gemma.config._attn_implementation = "eager"
    assert "attention is eager" in prefix_sharing.why_not(gemma)
    gemma.config._attn_implementation = "sdpa"
    gemma.config.layer_types = ["chunked_attention", "full_attention"]
    assert "layers of chunked_attention" in prefix_sharing.why_not(gemma)
    gemma.config.layer_types = ["sliding_attention", "full_attention"]
    gemma.config.sliding_window = 6  # the layers were built with 5
    assert "how far they look back" in prefix_sharing.why_not(gemma)
    gpt2 = build("gpt2-tied")
    real = gpt2.transformer.h[1].attn.forward
    gpt2.transformer.h[1].attn.forward = lambda states, *a, **k: (
        real(states, *a, **k)[0] + states.cumsum(1), None
    )  # fmt: skip
    assert "hidden states then differ" in prefix_sharing.why_not(gpt2)


def test_a_run_says_that_its_model_cannot(lab, runner, tmp_path):
    raw = lab.raw(model={"attention": "eager"}, training={"steps": 1})
    run = runner.start(raw, tmp_path / "run")
    assert run.world.policy.share == "off"
    said = [note for note in run.world.services.notes if "common prefixes" in note]
    assert len(said) == 1
    assert "Qwen3ForCausalLM cannot share them, its attention is eager" in said[0]
    raw["training"]["share_prefixes"] = "on"
    with pytest.raises(UserError, match="share_prefixes=on: Qwen3ForCausalLM cannot"):
        runner.start(raw, tmp_path / "other")


def test_a_run_shares_and_its_first_step_is_that_of_the_plain_way(lab, runner, tmp_path):
    lines = []
    for share in ("off", "on", "auto"):
        raw = lab.raw("grpo(beta=0.1)", training={"steps": 1, "share_prefixes": share})
        run = runner.start(raw, tmp_path / share)
        assert run.world.policy.share == run.world.reference.share == share
        assert not any("alike" in note for note in run.world.services.notes)
        lines.append(runner.go(run).seen[0])
    for line in lines[1:]:
        for name, value in lines[0].items():
            if not name.startswith(("timing_s/", "perf/")) and name != "step_time":
                assert line[name] == pytest.approx(value, abs=1e-5, rel=1e-5, nan_ok=True), name
