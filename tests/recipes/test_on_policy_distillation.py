"""Recipes that follow a teacher: `on_policy_distillation`, `vopd`, and `gkd`."""

import json

import pytest
import torch
from builders import assert_same_push, flat_batch, ragged_batch, rows_learning, stages
from models import save_model, tokenizer
from short_runs import teacher_of
from transformers import AutoModelForCausalLM

from strop.method.check import check
from strop.recipes.gkd import gkd
from strop.recipes.grpo import grpo
from strop.recipes.on_policy_distillation import on_policy_distillation
from strop.recipes.vopd import vopd
from strop.support.errors import UserError
from strop.training.learner.policy import Policy
from strop.training.loading import load_model
from strop.training.settings import config


def test_worked_example():
    batch = flat_batch((2, 2), logp_old_T=[-1.0, -2.0, -0.5, -3.0],
                       logp_ref_T=[-0.5, -2.5, -0.5, -1.0], reward_B=[1.0, 0.0])  # fmt: skip
    assert stages(on_policy_distillation(coef=2.0), batch)["advantage_T"].tolist() == [1, -1, 0, 4]


def test_reductions():
    """Without the teacher's share it is grpo; a centred one is vopd."""
    assert on_policy_distillation(centre=True) == vopd()
    batch = ragged_batch(3)
    plain = grpo(num_rollouts=4, aggregation="token-mean")
    mixed = stages(on_policy_distillation(rewards=True, coef=0.0), batch)["advantage_T"]
    torch.testing.assert_close(mixed, stages(plain, batch)["advantage_T"])
    both = stages(on_policy_distillation(rewards=True), batch)["advantage_T"]
    alone = stages(on_policy_distillation(), batch)["advantage_T"]
    torch.testing.assert_close(both, mixed + alone)
    for algorithm in (
        on_policy_distillation(),
        vopd(),
        gkd(),
        on_policy_distillation(rewards=True),
    ):
        check(algorithm)


def test_gradient_is_that_of_the_published_loss():
    batch = stages(on_policy_distillation(), ragged_batch(1))
    rows = rows_learning(batch)
    credit_N = (batch["logp_ref_T"] - batch["logp_old_T"])[rows]
    old_N = batch["logp_old_T"][rows]

    def published(logp_T):
        ratio_N = (logp_T[rows] - old_N).exp()
        return -(torch.minimum(ratio_N * credit_N, ratio_N.clamp(0.8, 1.2) * credit_N)).mean()

    assert_same_push(on_policy_distillation(), batch, published)


def test_the_teacher_is_the_reference(runner, lab, tmp_path):
    """Its columns are those of its own model, in every pass, and the divergence is exact."""
    teacher = teacher_of(lab)
    raw = lab.raw("vopd", training={"save_every": 0}, algorithm={"sampling.num_rollouts": 2})
    raw["model"] |= {"reference": str(teacher), "dtype": "float64"}
    run = runner.start(raw, tmp_path / "run")
    world = run.world
    ids = torch.tensor([3, 4, 13, 5, 6, 3, 5, 13, 7])
    batch = flat_batch(
        (5, 4), id_T=ids.tolist(), mask_T=[False] * 3 + [True] * 2 + [False] * 3 + [True]
    )
    found_T = world.policy.divergence(batch, world.reference, 1.0)
    for row, start in ((0, 0), (1, 5)):
        end = 5 if row == 0 else 9
        with torch.no_grad():
            logq, logp = (
                each.model(ids[None, start:end]).logits[0].log_softmax(-1)
                for each in (world.policy, world.reference)
            )
        kl = (logq.exp() * (logq - logp)).sum(-1)
        for place in range(start, end):
            wanted = float(kl[place - start - 1]) if bool(batch["mask_T"][place]) else 0.0
            assert float(found_T[place]) == pytest.approx(wanted, abs=1e-9)
    assert isinstance(world.reference, Policy)
    run.close()


def test_an_adapter_teaches_on_the_model_that_it_was_trained_on(runner, lab, tmp_path):
    teacher, adapter = teacher_of(lab), tmp_path / "adapter"
    adapter.mkdir()
    new = lab.raw("grpo", model={"name": str(teacher), "lora_rank": 2})
    load_model(config.make(new)).save(adapter)  # a new adapter changes nothing
    raw = lab.raw("on_policy_distillation")
    raw["model"]["reference"] = str(adapter)
    world = runner.start(raw, tmp_path / "run").world
    whole = AutoModelForCausalLM.from_pretrained(teacher)
    ids = torch.tensor([[3, 4, 13, 5]])
    with torch.no_grad():
        found, wanted = (each(input_ids=ids).logits for each in (world.reference.model, whole))
    torch.testing.assert_close(found, wanted)


def test_a_policy_becomes_like_its_teacher(strop, lab, tmp_path):
    """The divergence over the vocabulary falls by a third in a few steps, without any reward."""
    teacher = teacher_of(lab)
    for method in ("gkd(divergence='reverse')", "vopd"):
        out = tmp_path / method[:4]
        result = strop(
            "train", method, *lab.arguments("--out", str(out)), f"model.reference={teacher}",
            "training.steps=15", "training.save_every=0", "sampling.num_prompts=4", "--quiet",
        )  # fmt: skip
        assert result.code == 0, result.err
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        key = "reference/kl_mean" if method == "vopd" else "objective/distillation"
        assert abs(lines[-1][key]) < abs(lines[0][key]) * 2 / 3
        assert method == "vopd" or lines[0]["kl"] == pytest.approx(-lines[0][key])


def test_mistakes_about_teachers(runner, lab, tmp_path):
    other = save_model(tmp_path / "other", ours=_larger())
    padded = _padded(save_model(tmp_path / "padded"))
    for recipe, reference, told in (
        ("on_policy_distillation", "", "learns from its reference alone"),
        ("gkd", "", "name a teacher with model.reference"),
        ("grpo", str(teacher_of(lab)), "no part of the method reads a reference policy"),
        ("brorl", str(teacher_of(lab)), "renew_reference"),
        ("gkd", str(other), r"other tokens than .*, the first that differs is 'zzz', number"),
        ("gkd", str(tmp_path / "nowhere"), "nowhere"),
        ("gkd", str(padded), "their whole distributions cannot be compared"),
    ):
        raw = lab.raw(recipe)
        raw["model"]["reference"] = reference
        with pytest.raises(UserError, match=told):
            runner.start(raw, tmp_path / "run")
    raw = lab.raw("on_policy_distillation")
    raw["model"]["reference"] = str(_padded(save_model(tmp_path / "short"), -2))
    with pytest.raises(UserError, match=r"gives 22 tokens a prob.* writes any of 24"):
        runner.start(raw, tmp_path / "run")
    raw["model"] |= {"reference": str(padded), "reference_api_key_env": "TEACHER_KEY"}
    with pytest.raises(UserError, match="no server asks for it"):
        runner.start(raw, tmp_path / "run")
    del raw["model"]["reference_api_key_env"]  # of padded the drawn tokens alone are looked at
    runner.start(raw, tmp_path / "run").close()


def _padded(folder, by=8):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size + by)
    model.save_pretrained(folder)
    return folder


def _larger():
    ours = tokenizer()
    ours.add_tokens(["zzz"])
    return ours
