"""StropGRPOTrainer and TRL's own trainer: equal where both compute the same."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from datasets import Dataset
from models import save_model
from trainers import QUIET, digits, make, trained, written

from strop.integrations._trl_options import draws_whole
from strop.method import notation
from strop.support.errors import UserError

pytestmark = pytest.mark.filterwarnings(QUIET, "ignore:the recipe.s num_")
GSPO = notation.recipe("gspo").each(
    lambda each: each.with_knobs({"advantage.divide_by_group_std.eps": 1e-4})
)
SAME = ("loss", "grad_norm", "reward", "entropy", "clip_ratio/high_mean", "completions/mean_length")


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        ("grpo(eps=1e-4)", {"loss_type": "grpo"}, {}),
        ("grpo(eps=1e-4)", {"loss_type": "grpo"},
         {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}),
        ("grpo(eps=1e-4)", {"loss_type": "grpo"},
         {"num_iterations": 2, "per_device_train_batch_size": 4, "steps_per_generation": 2}),
        ("grpo(eps=1e-4, aggregation='token-mean')", {"loss_type": "dapo"},
         {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}),
        ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}, {}),
        (GSPO, {"loss_type": "grpo", "importance_sampling_level": "sequence",
                    "epsilon": 3e-4, "epsilon_high": 4e-4}, {"num_iterations": 2}),
        ("grpo(eps=1e-4, beta=0.1)",
         {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False}, {}),
    ],
)  # fmt: skip
def test_equals_trl(build: Any, ours: Any, theirs: dict[str, Any], options: dict[str, Any]) -> None:
    one = build(**theirs, **options)
    wanted = trained(one)
    other = build(ours, **options)  # which seeds all draws anew
    for step, (expected, found) in enumerate(zip(wanted, trained(other), strict=True)):
        assert {*SAME} & expected.keys() <= found.keys(), step
        for name in SAME:
            per_answer = name.startswith("clip_ratio") and "importance_sampling_level" in theirs
            if name in expected and not per_answer:  # TRL counts answers there
                assert found[name] == pytest.approx(expected[name], rel=2e-5, abs=2e-6), (
                    step,
                    name,
                )
    assert wanted[0]["grad_norm"] > 0.1
    assert torch.allclose(weights(one), weights(other), atol=2e-5)


def test_the_balance_of_experts_counts_as_in_trl(tmp_path: Path) -> None:
    mixture = save_model(tmp_path / "mixture", experts=4)
    options = {"rollout_func": written, "max_steps": 2, "router_aux_loss_coef": 1.0}
    one = make(mixture, tmp_path / "output", None, **options, loss_type="grpo")
    wanted = trained(one)
    other = make(mixture, tmp_path / "output", "grpo(eps=1e-4)", **options)
    for expected, found in zip(wanted, trained(other), strict=True):
        assert expected["aux_loss"] > 0.1
        for name in ("loss", "grad_norm", "aux_loss"):
            assert found[name] == pytest.approx(expected[name], rel=2e-5, abs=2e-6)
    assert torch.allclose(weights(one), weights(other), atol=2e-5)


def test_accumulation_changes_nothing(build: Any) -> None:
    """Averages over the whole update, however it is cut; also where a part must see all of it."""
    for recipe in ("clip_cov(clip_cov_ratio=0.2, clip_cov_lb=0.01)", "cispo", "entropy_bonus"):
        whole = build(recipe, rollout_func=written, num_iterations=2)
        cut = build(
            recipe, rollout_func=written, num_iterations=2, per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
        )  # fmt: skip
        for expected, found in zip(trained(whole), trained(cut), strict=True):
            measured = {name for name in expected if name.startswith(("clip_ratio", "loss/"))}
            assert measured
            for name in {"loss", "grad_norm", *measured}:
                assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), recipe
        assert torch.allclose(weights(whole), weights(cut), atol=1e-5)


def test_controls_move_and_go_on_from_a_checkpoint(build: Any, tmp_path: Any) -> None:
    recipe = "adaptive_entropy_coef(target=9.0, delta=0.01)"
    options = {"rollout_func": written, "max_steps": 4}
    trainer = build(recipe, **options)
    with mock.patch.object(trainer.strop, "end", wraps=trainer.strop.end) as end:
        whole = trained(trainer)
    assert all("clip_ratio/region_mean" in call.args[1] for call in end.call_args_list)
    coefs = [row["entropy_control/coef"] for row in whole[1:]]
    assert coefs == pytest.approx([0.01, 0.02, 0.03])
    started = build(recipe, **options, save_strategy="steps", save_steps=2)
    trained(started)
    resumed = build(recipe, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "output/checkpoint-2"))
    rows = [row for row in resumed.state.log_history if "loss" in row]
    assert rows[-1]["entropy_control/coef"] == pytest.approx(0.03)
    assert rows[-1]["loss"] == pytest.approx(whole[-1]["loss"], rel=1e-5)


def test_a_checkpoint_of_another_recipe_is_refused(build: Any, tmp_path: Path) -> None:
    saving = {"rollout_func": written, "max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trained(build("adaptive_entropy_coef", **saving))
    one = tmp_path / "output/checkpoint-1"
    with pytest.raises(UserError, match=r"checkpoint-1 was written with another recipe \(no opti"):
        build("grpo", **saving).train(resume_from_checkpoint=str(one))
    (one / "strop_state.pt").unlink()
    with pytest.raises(UserError, match=r"has no strop_state.pt, .* as the model"):
        build("adaptive_entropy_coef", **saving).train(resume_from_checkpoint=str(one))


@pytest.mark.parametrize("passes", [8, 10])  # after step 2, and in the middle of step 3
def test_a_stopped_training_goes_on_in_the_same_process(build: Any, passes: int) -> None:
    recipe = "adaptive_entropy_coef(target=9.0, delta=0.01)"
    options = {"rollout_func": written, "max_steps": 4, "per_device_train_batch_size": 2,
               "gradient_accumulation_steps": 4}  # fmt: skip
    whole = trained(build(recipe, **options))
    trainer = build(recipe, **options, save_strategy="steps", save_steps=2)
    steps = [mock.DEFAULT] * passes + [KeyboardInterrupt]
    with (
        mock.patch.object(trainer, "training_step", side_effect=steps, wraps=trainer.training_step),
        pytest.raises(KeyboardInterrupt),
    ):
        trainer.train()
    trainer.train(resume_from_checkpoint=True)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, expected in zip(rows[2:], whole[2:], strict=True):
        for name in ("loss", "grad_norm", "entropy_control/coef"):
            assert row[name] == pytest.approx(expected[name], rel=1e-4), name


def test_evaluates_and_trains_adapters(build: Any) -> None:
    from datasets import Dataset
    from peft import LoraConfig

    trainer = build(
        "mc_grpo", num_iterations=2, max_steps=2, peft_config=LoraConfig(r=2),
        eval_strategy="steps", eval_steps=1,
        eval_dataset=Dataset.from_dict({"prompt": ["1+1:", "2+2:"]}), per_device_eval_batch_size=8,
    )  # fmt: skip
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trained(trainer)
    evaluated = [row for row in trainer.state.log_history if "eval_loss" in row]
    assert len(evaluated) == 2
    assert all("eval_entropy" in row and "eval_reward" in row for row in evaluated)
    moved = {n for n, p in trainer.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert all("lora" in name for name in moved)


def by_vllm(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """The same answers with log-probabilities of an engine; a tool wrote their second token."""
    found = written(prompts, trainer)
    answers = found["completion_ids"]
    found["logprobs"] = [[-3.0 + 0.3 * (token % 3) for token in ids] for ids in answers]
    return {**found, "env_mask": [[int(at != 1) for at in range(len(ids))] for ids in answers]}


def with_engine(trainer: Any) -> Any:
    """The trainer as it is with vLLM, which its answers do not come from."""
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, mock.Mock(), -1
    return trainer


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_weights_of_vllm_and_words_of_tools_as_in_trl(build: Any, mode: str) -> None:
    options = {
        "rollout_func": by_vllm, "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_max": 1.5,
    }  # fmt: skip
    one = with_engine(build(loss_type="grpo", **options))
    wanted = trained(one)
    other = with_engine(build("grpo(eps=1e-4)", **options))
    for step, (expected, found) in enumerate(zip(wanted, trained(other), strict=True)):
        for name in ("loss", "grad_norm", "sampling/importance_sampling_ratio/mean"):
            apart = 5e-4 if step else 2e-6  # Adam's first step turns some roundings into signs
            assert found[name] == pytest.approx(expected[name], rel=apart, abs=apart), (step, name)
    assert wanted[0]["sampling/importance_sampling_ratio/mean"] != 1


def test_a_recipe_of_the_engines_probabilities_reads_them(build: Any) -> None:
    trainer = build(
        "rollout_correction", rollout_func=by_vllm, max_steps=1,
        vllm_importance_sampling_correction=False,
    )  # fmt: skip
    trained(trainer)
    batch = trainer._strop_step.batch
    own = batch["logp_behavior_T"][batch["mask_T"]]
    told = -3.0 + 0.3 * (batch["id_T"][batch["mask_T"]] % 3)
    torch.testing.assert_close(own, told.float())
    assert batch.size("K") > batch.size("B")


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("gae", {}, "trains a critic"),
        ("dapo", {}, "requests further rollouts"),
        ("gigpo", {}, "plays episodes"),
        ("mc_grpo", {"beta": 0.1}, r"beta=0.1 .* is here beta in the brackets of a recipe"),
        ("mc_grpo", {"loss_type": "sapo"}, "loss_type=sapo is here sapo_soft"),
        ("mc_grpo", {"off_policy_mask_threshold": 0.5}, "is here the recipe opsm"),
        ("mc_grpo", {"epsilon": 0.1}, "epsilon=0.1"),
        ("grpo(num_rollouts=8)", {}, "num_generations"),
        ("mc_grpo(num_epochs=3)", {"num_iterations": 2}, "num_epochs is 3 and TRL's num_iter"),
        (
            "mc_grpo",
            {"steps_per_generation": 1, "gradient_accumulation_steps": 2},
            "not a multiple",
        ),
        ("no_such", {}, "no recipe 'no_such'"),
        ("drive", {}, "chooses prompts by itself"),
        (5, {}, "recipe is int"),
    ],
)
def test_refused(build: Any, recipe: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(recipe, **options)


def test_cut_answers_have_no_known_probability(build: Any) -> None:
    trainer = build("rollout_correction", top_k=3)
    with pytest.raises(UserError, match="reads logp_"):
        trainer.train()


def test_rows_that_share_a_prompt_are_several(build: Any) -> None:
    rows = Dataset.from_dict({"prompt": ["1+2:"] * 12, "answer": list("abcdefghijkl")})
    trainer = build("grpo", rollout_func=written, train_dataset=rows)
    with mock.patch.object(trainer.strop, "begin", wraps=trainer.strop.begin) as begin:
        trained(trainer)
    uids = [call.args[2].uid_B.tolist() for call in begin.call_args_list]
    assert [len(set(each)) for each in uids] == [2, 2, 2]
    assert len({uid for each in uids for uid in each}) == 6


def test_unscored_answers_move_nothing(build: Any) -> None:
    """An answer for which every function says None has advantage 0."""
    trainer = build("dr_grpo", rollout_func=written, max_steps=1)
    trainer.reward_funcs[0] = trainer.reward_funcs[1] = lambda completions, **columns: [
        None if index == 1 else reward for index, reward in enumerate(digits(completions))
    ]
    trained(trainer)
    assert trainer._logs["advantages"][1] == 0
    assert any(trainer._logs["advantages"])


def test_what_cuts_the_distribution_is_seen() -> None:
    usual = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    for name, value in (("", None), ("top_p", 0.9), ("top_k", 5), ("repetition_penalty", 1.2)):
        args = mock.Mock(**{**usual, "generation_kwargs": None, name or "x": value})
        assert draws_whole(args) == (not name)
