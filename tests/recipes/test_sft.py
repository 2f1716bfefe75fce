"""Supervised fine-tuning: the loss, and the whole way from a file through the command line."""

import json

import pytest
import torch
from builders import assert_same_push, ragged_batch, stages
from models import Lab
from runs import Runner

from strop.recipes.sft import sft
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics
from strop.training.loading import load_model


def test_gradient_is_that_of_the_cross_entropy():
    batch = stages(sft(), ragged_batch(4))
    rows = batch["gradient_T"].nonzero().squeeze(1)
    assert_same_push(sft(), batch, lambda logp_T: -logp_T[rows].mean(), "logp_T")


def rows_of(lab, rows):
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def settings(lab, recipe="sft", num_rollouts=1, **more):
    raw = lab.raw(recipe, **more)
    raw["reward"] = {}
    raw["algorithm"] = {"sampling.num_prompts": 2, "sampling.num_rollouts": num_rollouts}
    return raw


@pytest.fixture
def lab(tmp_path):
    lab = Lab.make(tmp_path)
    rows_of(lab, [{"prompt": f"{n}+1:", "completion": f"={n % 2}"} for n in range(8)])
    return lab


def test_answers_become_likelier_without_any_reward_function(lab, tmp_path):
    steps = {"steps": 30, "save_every": 0, "rollouts_every": 10}
    raw = settings(lab, training=steps, evaluation={"every": 10})
    Runner().whole(raw, tmp_path / "run")
    lines = read_metrics(tmp_path / "run")
    nll = [line["eval/validation/nll"] for line in lines if "eval/validation/nll" in line]
    assert len(nll) == 4
    assert nll[-1] < nll[0] / 2
    assert lines[-1]["policy_loss"] < lines[1]["policy_loss"] / 2
    assert not any(name.startswith(("eval/validation/pass", "sampling/", "entropy")) for line in
                   lines for name in line)  # fmt: skip
    assert (tmp_path / "run/rollouts/step-000010.parquet").exists()


def test_the_loss_is_the_mean_over_all_tokens_of_the_answers_ends_included(lab, tmp_path):
    runner = Runner()
    run = runner.start(settings(lab, training={"steps": 1, "save_every": 0}), tmp_path / "run")
    services, policy = run.world.services, run.world.policy
    batch = run.algorithm.rollout.part.read(_draws(run, 2), services.texts, services.sampling)
    ends = batch["id_T"][batch["rollout_T"].diff(append=torch.tensor([9])) != 0]
    assert set(ends.tolist()) == {services.texts.end_ids[0]}
    logp_T = policy.columns(batch, ("logp_T",), 1.0)["logp_T"]
    expected = -float(logp_T[batch["mask_T"]].mean())
    seen = runner.go(run).seen[-1]
    assert seen["policy_loss"] == pytest.approx(expected, rel=1e-4)


def _draws(run, number):
    """The first draws of the run."""
    from strop.method import part as parts
    from strop.method.chains import generators

    use = run.algorithm.sampling[0]
    rng = generators(run.config.seed, 1)(f"sampling.{use.label}", 0)
    state = use.part.init()
    return parts.call(use, None, pool=run.world.pool, state=state, rng=rng).value


def test_an_assistants_message_is_an_answer(lab, tmp_path):
    rows_of(lab, [{"prompt": f"{n}+1:", "completion": [{"role": "assistant", "content": f"={n}"}]}
                  for n in range(4)])  # fmt: skip
    run = Runner().start(settings(lab), tmp_path / "run")
    texts = run.world.services.texts
    assert texts.decode(texts.answer_ids(0, end=False)) == "=0"
    assert texts.answer_ids(0) == (*texts.encode("=0"), *texts.end_ids)
    run.close()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "1+1:", "completion": None}, "has no completion: fill it in"),
        ({"prompt": "1+1:"}, "the data have no column completion"),
        ({"prompt": "1+1:", "completion": ""}, "must be text or one message of an assistant"),
        ({"prompt": "1+1:", "completion": 3}, "must be text or one message of an assistant"),
        ({"prompt": "1+1:", "completion": [{"role": "user", "content": "2"}]}, "of an assistant"),
        (
            {"prompt": "1+1:", "completion": [{"role": "user", "content": "1+1:"}] * 2},
            "data.reader=messages reads conversations",
        ),
        ({"prompt": "1+1:", "completion": "1" * 200}, "tokens long"),
        ({"prompt": "1" * 40, "completion": "1" * 40}, "context has room for"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written(row, message, lab, tmp_path):
    rows_of(lab, [row] * 4)
    with pytest.raises(UserError, match=message):
        Runner().start(settings(lab), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pairs_from_a_file_are_put_in_order(lab, tmp_path):
    rows_of(lab, [{"prompt": f"{n}+1:", "chosen": f"={n}", "rejected": f"{n}++"}
                  for n in range(8)])  # fmt: skip
    steps = {"steps": 30, "save_every": 0, "rollouts_every": 0}
    for recipe in ("dpo", "simpo(sft_weight=0.1)"):
        folder = tmp_path / recipe[:3]
        raw = settings(lab, recipe, 2, training=steps, evaluation={"every": 30})
        Runner().whole(raw, folder)
        last = read_metrics(folder)[-1]
        assert last["preference/accuracy"] == 1.0
        assert last["eval/validation/ranking_accuracy_per_token"] == 1.0
        assert ("eval/validation/reward_accuracy" in last) == (recipe == "dpo")
        assert last["preference/margin"] > 0.1


def test_a_killed_run_goes_on_exactly(lab, tmp_path):
    raw = settings(lab, training={"steps": 6, "save_every": 2})
    Runner().whole(raw, tmp_path / "whole")
    first = {**raw, "training": {**raw["training"], "steps": 4}}
    Runner().whole(first, tmp_path / "half")
    runner = Runner()
    runner.go(runner.resume(tmp_path / "half", training={"steps": 6}))
    ours = [line["policy_loss"] for line in read_metrics(tmp_path / "half")]
    assert ours == [line["policy_loss"] for line in read_metrics(tmp_path / "whole")]


def test_the_model_names_one_end_of_an_answer(lab):
    from strop.training.settings import config

    loaded = load_model(config.make(settings(lab)))
    assert loaded.end_ids == (loaded.tokenizer.eos_token_id,)
