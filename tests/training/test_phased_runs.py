"""Runs in phases: what is kept across a change, and exact resumes from any interruption."""

import tomllib

import pytest
from models import without_times

from strop.support.errors import UserError
from strop.training.record.checkpoint import newest

PHASED = "until(2, grpo) | until(4, gae) @ with_critic | adaptive_entropy_coef(target=3.1)"


def short(lab, recipe=PHASED, **training):
    raw = lab.raw(recipe, reward="even", training={"steps": 6, "save_every": 1, **training})
    raw["evaluation"] = {"every": 3, "num_samples": 2}
    return raw


@pytest.fixture(scope="module")
def whole(lab, tmp_path_factory):
    from runs import Runner

    folder = tmp_path_factory.mktemp("whole") / "run"
    return Runner().whole(short(lab), folder)


def test_steps_are_of_their_phases_and_state_goes_on(whole):
    lines = [line for line in without_times(whole.record.folder) if line["step"]]
    assert [line["phase"] for line in lines] == [1, 1, 2, 2, 3, 3]
    judged = ["critic/value_mean" in line for line in lines]
    assert judged == [False, False, True, True, False, False]
    state = whole.state
    assert state["phase"] == {"number": 3, "begun": 5}
    assert state["control.hold_entropy_with_coefficient"]["coef"] > 0
    # the order of prompts and the optimiser went on over both changes
    order = state["sampling.draw_in_shuffled_order"]  # of 10 prompts, 2 a step
    assert (order["epoch"], order["cursor"]) == (1, 2)
    steps = {float(s["step"]) for s in whole.world.policy.optimiser.state_dict()["state"].values()}
    assert steps == {6.0}
    written = (whole.record.folder / "config.toml").read_text(encoding="utf-8")
    assert list(tomllib.loads(written)["phases"]) == [
        "grpo",
        "with_critic",
        "adaptive_entropy_coef",
    ]


@pytest.mark.parametrize("stop", [2, 3])
def test_a_run_goes_on_exactly_inside_a_phase_and_at_its_end(whole, lab, runner, tmp_path, stop):
    folder = tmp_path / "run"

    def ask(run):
        run.stop_asked = run.done == stop

    runner.go(runner.start(short(lab), folder), ask)
    run = runner.resume(folder)
    assert run.done == stop
    runner.go(run)
    assert without_times(folder) == without_times(whole.record.folder)
    one = newest(folder / "checkpoints") / "model.safetensors"
    two = newest(whole.record.folder / "checkpoints") / "model.safetensors"
    assert one.read_bytes() == two.read_bytes()


def test_equal_phases_are_one_algorithm(lab, runner, tmp_path):
    for name, recipe in (("one", "grpo"), ("two", "until(1, grpo) | grpo")):
        runner.whole(short(lab, recipe, steps=2), tmp_path / name)
    one, two = (without_times(tmp_path / name) for name in ("one", "two"))
    assert [{k: v for k, v in line.items() if k != "phase"} for line in two] == one


def test_a_condition_ends_a_phase_for_good(lab, runner, tmp_path):
    # the entropy of the random model is below 100 at once
    run = runner.whole(short(lab, "until(entropy < 100, grpo) | dapo", steps=3), tmp_path / "run")
    lines = without_times(run.record.folder)[1:]
    assert [line["phase"] for line in lines] == [1, 2, 2]


def test_a_number_that_no_step_has_stops_the_run_at_the_phases_first_step(lab, runner, tmp_path):
    run = runner.start(short(lab, "until(entropi < 1, grpo) | dapo"), tmp_path / "run")
    with pytest.raises(UserError, match=r"phase grpo is until .* no entropi, did you mean entropy"):
        runner.go(run)


def test_phases_of_other_lengths_keep_to_their_own(lab, runner, tmp_path):
    raw = short(lab, "until(1, grpo) @ short | grpo @ long", steps=2)
    raw["phases"] = {"short": {"algorithm": {"rollout.max_tokens": 3}}}
    run = runner.whole(raw, tmp_path / "run")
    lines = without_times(run.record.folder)[1:]
    assert lines[0]["completions/max_length"] <= 3 < lines[1]["completions/max_length"]
