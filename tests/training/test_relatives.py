"""A run reports when its method took the step of its parent or of a usual method."""

import json

import pytest
from models import without_times
from runs import Runner

from strop.catalogue import catalogue
from strop.diagnosis.run import examine
from strop.method import notation
from strop.method.part import name_of
from strop.training import relatives
from strop.training.record.likeness import NAME, Likeness, read
from strop.training.settings import config


def raw_of(lab, recipe, steps=1, **options):
    engine = {"staleness": options.pop("staleness")} if "staleness" in options else {}
    raw = lab.raw(recipe, reward="even", engine=engine, training={"steps": steps, "save_every": 0})
    raw["algorithm"] |= {"sampling.num_prompts": 4, **options}
    return raw


def likeness_of(lab, folder, recipe, **options):
    run = Runner().whole(raw_of(lab, recipe, **options), folder)
    assert run.likeness is not None, "the step has taught something"
    return run.likeness


@pytest.mark.parametrize(
    ("recipe", "equal", "lasting"),
    [
        ("gspo(num_minibatches=1)", ("grpo",), True),
        ("cispo", ("grpo(aggregation='token-mean')",), True),
        ("gspo_token(num_minibatches=1)", ("gspo(num_minibatches=1)", "grpo"), True),
        ("dro", ("grpo(aggregation='token-mean')",), False),  # its spring is a term more
        ("lp_reg(beta=0.0)", ("grpo(aggregation='token-mean', num_rollouts=8)",), False),
        ("aspo_tool", ("dapo",), False),
        ("arrol", ("grpo",), False),  # a strategy that has stopped nothing draws as grpo does
        (
            "ares_aepo(num_minibatches=1)",
            ("grpo(aggregation='token-mean', num_rollouts=8)",),
            False,
        ),
    ],
)
def test_a_first_step_like_anothers_is_told(lab, tmp_path, recipe, equal, lasting):
    found = likeness_of(lab, tmp_path, recipe)
    assert (found.equal, found.lasting) == (equal, lasting)
    assert read(tmp_path)[0] == found.text


@pytest.mark.parametrize(
    ("recipe", "options", "parent", "stage"),
    [
        ("dr_grpo", {}, "grpo", "loss"),
        ("gspo", {"plan.num_minibatches": 2}, "grpo", "loss of update 2"),
        ("remax", {}, "rloo", "rollout"),
        ("drive(sizes=(2,), lasts=(0.5,), later=2, num_answers=2)", {"steps": 2}, "rloo", "loss"),
        ("dapo", {}, "grpo", "loss"),
        ("vade", {}, "grpo", "sampling"),
        ("entropic", {}, "grpo", "loss"),
        ("rollout_correction", {"staleness": 1, "steps": 2}, "grpo", "loss"),
    ],
)  # fmt: skip
def test_the_stage_is_told_at_which_another_differs(lab, tmp_path, recipe, options, parent, stage):
    assert likeness_of(lab, tmp_path, recipe, **options).apart[parent] == stage


def test_the_runs_own_options_are_the_others_too(lab, tmp_path):
    options = {"advantage.eps": 0.5, "loss.clip_high": 0.3}
    found = likeness_of(lab, tmp_path, "gspo(num_rollouts=4, num_minibatches=1)", **options)
    assert found.equal == ("grpo(num_rollouts=4)",)


def test_a_parent_that_is_no_recipe_is_no_relative(lab, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text(
        "from strop.method.algorithm import Algorithm\n"
        "from strop.recipes.rloo import rloo\n\n\n"
        'def mine() -> Algorithm:\n    """Ours. Parent: our_baseline."""\n    return rloo()\n'
    )
    found = likeness_of(lab, tmp_path / "run", f'"{own}:mine"')
    assert "rloo" not in found.apart
    assert {"grpo", "gae"} <= found.apart.keys()


def test_the_plan_and_the_average_of_a_run_are_anothers_and_said():
    def method(text):
        return notation.recipe(text).algorithms[0]

    own = method("gspo(num_minibatches=2)")
    found, numbers = relatives._closer(own, method("rloo"))
    assert numbers == ["plan.num_minibatches=2", "average=average_per_sequence"]
    assert (found.plan, found.terms[0].average) == (own.plan, own.terms[0].average)
    assert relatives._closer(own, own) == (own, [])


def test_a_recipe_whose_rollout_is_replaced_for_the_task_has_relatives_that_play():
    raw = {"recipe": "latr", "data": {"task": "corridor"}, "stages": {"rollout": "play_turns"}}
    settings = config.make(raw)
    method = settings.build()
    found = list(relatives.relatives(settings, method, catalogue.find("recipe", "latr")))
    assert {name_of(each.algorithm.rollout.part) for each in found} == {"play_turns"}


def test_a_step_that_taught_nothing_tells_nothing(lab, tmp_path):
    raw = raw_of(lab, "gspo")
    rewards = tmp_path / "same.py"
    raw["reward"] = {"functions": [f"{rewards}:same"]}
    rewards.write_text("def same(completions, **_):\n    return [1.0] * len(completions)\n")
    assert Runner().whole(raw, tmp_path / "run").likeness is None
    assert read(tmp_path / "run") == ("", {})


def test_a_step_at_a_rate_of_zero_tells_nothing_of_later_updates(lab, tmp_path):
    for number, told in ((1, True), (2, False)):
        raw = raw_of(lab, f"gspo(num_minibatches={number})")
        raw["training"]["lr"] = 0.0
        found = Runner().whole(raw, tmp_path / str(number)).likeness
        assert (found is not None) == told


def test_a_run_is_bit_for_bit_the_same_without(lab, tmp_path, monkeypatch):
    raw = raw_of(lab, "clip_cov", steps=2)
    Runner().whole(raw, tmp_path / "with")
    monkeypatch.setattr(relatives, "watching", lambda *_: None)
    Runner().whole(raw, tmp_path / "without")
    assert without_times(tmp_path / "with") == without_times(tmp_path / "without")
    one, other = sorted(tmp_path.glob("*/checkpoints/*/model.safetensors"))
    assert one.read_bytes() == other.read_bytes()


def test_a_run_that_collects_ahead_is_not_told_to_set_the_engines_staleness(lab, tmp_path):
    raw = raw_of(lab, "areal_decoupled_ppo", steps=2)
    raw["training"] |= {"max_staleness": 1}
    found = Runner().whole(raw, tmp_path).likeness
    assert found.once == "answers come from older weights, as they do from step 2 on"


def test_the_line_and_what_the_doctor_makes_of_it(lab, tmp_path):
    both = Likeness("gspo", 1, ("grpo",), once="`plan.num_minibatches=4`")
    assert both.text == (
        "gspo is grpo in this run: step 1 had the same answers, masks and token weights. It "
        "differs once `plan.num_minibatches=4`."
    )
    assert "is so far grpo and rloo in" in Likeness("x", 1, ("grpo", "rloo"), lasting=False).text
    likeness_of(lab, tmp_path, "gspo(num_minibatches=1)")
    (finding,) = (each for each in examine(tmp_path) if "parent" in each.question)
    assert finding.status == "note"
    assert finding.answer == json.loads((tmp_path / NAME).read_text())["text"]
    (tmp_path / NAME).write_text("{")
    (finding,) = (each for each in examine(tmp_path) if "parent" in each.question)
    assert finding.status == "unknown"
