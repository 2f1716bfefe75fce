"""Every family of models: trains, agrees with its sampler, has autograd's gradients, reloads."""

import math

import pytest
import torch
from families import FAMILIES, RECURRENT, build, save
from models import exact_norms
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.batch.batch import from_padded
from strop.training.learner.policy import Policy
from strop.training.record import checkpoint

NAMES = ("logp_T", "entropy_T", "mean_logp_T")
TEMPERATURE = 0.7


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_train_and_the_checkpoint_is_the_model(family, lab, runner, tmp_path):
    place = save(family, tmp_path / "model")
    raw = lab.raw(
        "grpo(beta=0.01)", reward="even", model={"name": str(place)}, training={"steps": 2}
    )
    run = runner.start(raw, tmp_path / "run")
    before = [p.detach().clone() for p in run.loaded.model.parameters()]
    logged = runner.go(run).seen
    assert [math.isfinite(v) for line in logged for v in line.values()].count(False) == 0
    for line in logged:
        assert line["sampling/sampling_logp_difference/mean"] < 1e-4
    after = run.loaded.model.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    saved = checkpoint.newest(run.checkpoints)
    again = AutoModelForCausalLM.from_pretrained(saved).eval()
    assert AutoTokenizer.from_pretrained(saved).decode([3, 4]) == "01"
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, run.loaded.model(ids).logits)


@pytest.fixture
def batch():
    """Four ragged rollouts of random tokens; the first three of each are the prompt."""
    rng = torch.Generator().manual_seed(1)
    size_B = torch.tensor([9, 5, 12, 7])
    place_L = torch.arange(12)
    mask_BL = (place_L >= 3) & (place_L < size_B[:, None])
    return from_padded({"id_T": torch.randint(24, (4, 12), generator=rng)}, mask_BL)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_trainers_gradient_is_that_of_autograd_on_the_whole_model(family, batch, monkeypatch):
    exact_norms(monkeypatch)
    model = build(family, torch.float64)
    rng = torch.Generator().manual_seed(2)
    num = int(batch["mask_T"].sum())
    adjoints = {name: torch.randn(num, generator=rng, dtype=torch.float64) for name in NAMES}
    adjoint_of = {}
    for name, value in adjoints.items():
        adjoint_of[name] = torch.zeros(batch.size("T"), dtype=torch.float64)
        adjoint_of[name][batch["mask_T"]] = value

    loss = 0.0
    for rollout in range(batch.size("B")):
        rows = batch["rollout_T"] == rollout
        ids, mask = batch["id_T"][rows], batch["mask_T"][rows][1:]
        logits = model(ids[None], use_cache=False).logits[0, :-1] / TEMPERATURE
        logq = logits.log_softmax(-1)
        own = {
            "logp_T": logq.gather(1, ids[1:, None])[:, 0],
            "entropy_T": -(logq.exp() * logq).sum(-1),
            "mean_logp_T": logq.mean(-1),
        }
        for name in NAMES:
            loss = loss + (adjoint_of[name][rows][1:] * own[name])[mask].sum()
    loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    policy = Policy(model, token_budget=24)
    micros = policy.micro_batches(batch)
    assert len(micros) > 1
    for index_B in micros:
        micro = batch.set(**adjoint_of).take(index_B)
        mask_T = micro["mask_T"]
        known = {name: micro[name][mask_T] for name in NAMES}

        def slices(rows, _, known=known):
            return {name: value[rows] for name, value in known.items()}

        policy.push(micro, NAMES, slices, False, TEMPERATURE)
    for name, parameter in model.named_parameters():
        ours = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        theirs = expected.get(name, torch.zeros_like(parameter))
        near = 1e-4 if family in RECURRENT else 1e-8
        torch.testing.assert_close(ours, theirs, atol=near, rtol=near)
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
