"""One training step: what it reads, what it leaves unchanged, what it passes to the next one."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from models import Lab
from runs import Runner

from strop.method import notation, reading
from strop.method.algorithm import wanted_columns
from strop.training.step import train_step

ROOT = Path(__file__).parents[2]
SOME = """
def some(completions, **columns):
    return [float(len(text)) if sum(map(ord, text)) % 3 else None for text in completions]
"""
FIRST = """
def first(completions, **columns):
    return [float(n == 0) for n, _ in enumerate(completions)]
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)


@pytest.fixture
def begin(lab, tmp_path):
    """A run that has not taken a step, by recipe and settings."""
    runner = Runner()

    def start(recipe="grpo", **sections):
        raw = {**lab.raw(recipe), "reward": sections.pop("reward", lab.raw()["reward"])}
        for name, section in sections.items():
            raw[name] = {**raw.get(name, {}), **section} if isinstance(section, dict) else section
        return runner.start(raw, tmp_path / f"run-{len(runner.open)}")

    yield start
    for run in runner.open:
        run.close()


def step(run, state, number):
    run.world.services.begin_step(number)
    return train_step(run.world, run.algorithm, state, number)


def weights(run):
    return torch.cat([p.detach().flatten() for p in run.loaded.model.parameters()])


def test_the_state_is_read_and_never_changed(begin):
    run = begin("adaptive_entropy_coef(target=9.0)")
    first = step(run, {}, 1)
    frozen = copy.deepcopy(first.state)
    second = step(run, first.state, 2)
    assert str(first.state) == str(frozen)
    assert str(second.state) != str(frozen)


def test_a_step_depends_on_seed_number_weights_and_state_alone(begin):
    one, two, other = begin(), begin(), begin(seed=1)
    got, again, different = step(one, {}, 1), step(two, {}, 1), step(other, {}, 1)
    for name, column in got.batch.columns.items():
        assert torch.equal(column, again.batch[name]), name
    assert torch.equal(weights(one), weights(two))
    ids = got.batch["id_T"]
    assert ids.shape != different.batch["id_T"].shape or not ids.equal(different.batch["id_T"])
    later = step(begin(), {}, 2).batch["id_T"]
    assert ids.shape != later.shape or not ids.equal(later)


def test_what_control_decides_holds_from_the_next_step_on(begin):
    run = begin("adaptive_entropy_coef(target=9.0, delta=0.25)")
    first = step(run, {}, 1)
    assert first.metrics["loss/entropy"] == 0  # the term's own coefficient
    assert first.state["knobs"] == {"terms.entropy.coef": 0.25}
    second = step(run, first.state, 2)
    expected = -0.25 * second.metrics["entropy"]
    assert second.metrics["loss/entropy"] == pytest.approx(expected, rel=1e-4)
    assert second.state["knobs"] == {"terms.entropy.coef": 0.5}


def test_a_control_may_move_the_learning_rate_from_the_one_of_the_step(begin):
    rate, own = 0.0256 * 0.2, {"control.hold_kl_with_coefficient.path": "training.lr"}
    run = begin("cory", algorithm=own, training={"lr": 0.05})
    first = step(run, {}, 1)  # the policy is its reference: the price falls
    assert first.state["knobs"] == {"training.lr": pytest.approx(0.05 * (1 - rate))}
    second = step(run, first.state, 2)
    moved = second.state["knobs"]["training.lr"] / first.state["knobs"]["training.lr"]
    assert moved != 1
    assert moved == pytest.approx(1, abs=rate * 1.01)


def test_tokens_are_counted_from_step_to_step(begin):
    run = begin()
    first = step(run, {}, 1)
    second = step(run, first.state, 2)
    assert first.metrics["num_tokens"] == first.batch.size("T")
    assert second.metrics["num_tokens"] == first.batch.size("T") + second.batch.size("T")


def test_a_step_runs_through_few_files(begin):
    """So that the way through a step does not grow unseen; `tools/count_files.py` lists them."""
    spec = importlib.util.spec_from_file_location("count_files", ROOT / "tools/count_files.py")
    counting = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(counting)
    run = begin()
    assert len(counting.files_of(lambda: step(run, {}, 1))) <= 51


def test_unscored_rollouts_take_part_in_nothing(begin, lab):
    (lab.rewards.parent / "some.py").write_text(SOME)
    run = begin(
        reward={"functions": [f"{lab.rewards.parent}/some.py:some"]},
        algorithm={"sampling.num_rollouts": 16},
    )
    got = step(run, {}, 1)
    scored_B = got.batch["scored_B"]
    assert 0 < int(scored_B.sum()) < scored_B.numel()
    outside_T = ~scored_B[got.batch["rollout_T"]]
    for name in ("gradient_T", "denominator_T"):
        assert not got.batch[name][outside_T].any()
    share = 1 - float(scored_B.double().mean())
    assert got.metrics["rewards/frac_unscored"] == pytest.approx(share)
    assert got.metrics["reward"] == pytest.approx(float(got.batch["reward_B"][scored_B].mean()))


@pytest.mark.parametrize(
    ("recipe", "share"), [("grpo", 0.25), ("grpo(beta=0.1)", 1.0), ("gae", 1.0)]
)
def test_rollouts_of_uniform_groups_have_no_gradient_unless_a_term_gives_them_one(
    begin, lab, recipe, share
):
    """Of four groups only that of the first prompt has two rewards; a penalty moves all."""
    (lab.rewards.parent / "first.py").write_text(FIRST)
    run = begin(
        recipe, reward={"functions": [f"{lab.rewards.parent}/first.py:first"]},
        algorithm={"sampling.num_prompts": 4},
    )  # fmt: skip
    got = step(run, {}, 1)
    assert got.metrics["frac_reward_zero_std"] == 0.75
    assert got.metrics["groups/frac_rollouts_with_gradient"] == share


@pytest.mark.parametrize(
    ("recipe", "changes", "wanted"),
    [
        ("grpo", {}, set()),
        ("grpo", {"plan.num_minibatches": 2}, {"logp_old_T"}),
        ("grpo", {"plan.num_epochs": 3}, {"logp_old_T"}),
        ("grpo(beta=0.1)", {}, {"logp_ref_T"}),
        ("entrocraft(beta=0.0, num_minibatches=1)", {}, {"entropy_old_T"}),
        ("grpo", {"correction": "weigh_by_engine_ratio"}, {"logp_old_T"}),
    ],
)
def test_only_columns_that_something_reads_are_computed(recipe, changes, wanted):
    algorithm = notation.recipe(recipe)
    for path, value in changes.items():
        if path == "correction":
            algorithm = reading.replace_stage(algorithm, path, value)
        else:
            algorithm = reading.override(algorithm, path, value)
    assert wanted_columns(algorithm) - {"logp_sampler_T"} == wanted


def test_a_correction_of_the_engine_works_with_a_lone_update(begin):
    """Engine and trainer agree here, so its factor is 1 and the step is the same.

    In float64, for Adam's first step goes by the sign of every gradient, be it of rounding; what
    the engine tells is float32.
    """
    exact = {"dtype": "float64"}
    plain = begin(model=exact)
    corrected = begin(model=exact, stages={"correction": "weigh_by_engine_ratio"})
    one, two = step(plain, {}, 1), step(corrected, {}, 1)
    assert two.metrics["grad_norm"] == pytest.approx(one.metrics["grad_norm"], rel=1e-6)
    assert torch.allclose(weights(plain), weights(corrected), atol=1e-4)


def test_a_correction_of_old_weights_changes_the_step(begin):
    """The engine is a step behind from the second step on."""
    old = {"model": {"dtype": "float64"}, "engine": {"staleness": 1}, "training": {"lr": 0.05}}
    plain = begin(**old)
    corrected = begin(**old, stages={"correction": "weigh_by_engine_ratio"})
    one, two = (step(run, step(run, {}, 1).state, 2) for run in (plain, corrected))
    assert two.metrics["correction/mean"] != pytest.approx(1, abs=1e-3)
    assert two.metrics["grad_norm"] != pytest.approx(one.metrics["grad_norm"], rel=1e-3)


def test_several_updates_a_step_move_the_ratio(begin):
    run = begin(training={"lr": 0.05}, algorithm={"plan.num_epochs": 4, "plan.num_minibatches": 2})
    got = step(run, {}, 1)
    assert "logp_old_T" in got.batch
    assert got.metrics["clip_ratio/region_mean"] > 0
    assert got.metrics["groups/frac_updates_empty"] == 0
    assert got.metrics["updates/of_policy"] == 8
