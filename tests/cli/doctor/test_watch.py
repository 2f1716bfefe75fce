"""The doctor's warnings during a run: once per kind, and where it has to stop the run."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Strop
from models import Lab

from strop.diagnosis.run import RunFiles, unscored
from strop.diagnosis.watch import STEPS, Watch
from strop.rewards.grader import Failure
from strop.support.errors import RunStopped
from strop.support.exits import Exit

HEALTHY = {
    "loss": 0.01, "grad_norm": 0.3, "learning_rate": 1e-4, "frac_reward_zero_std": 0.25,
    "advantage/abs_mean": 0.5, "groups/frac_rollouts_with_gradient": 1.0,
    "groups/frac_updates_empty": 0.0, "completions/clipped_ratio": 0.0,
    "rewards/frac_unscored": 0.0, "data/rollouts_sampled": 8.0, "data/rollouts_kept": 8.0,
}  # fmt: skip
NO_SIGNAL = {"frac_reward_zero_std": 1.0, "advantage/abs_mean": 0.0}
UNSCORED = {"rewards/frac_unscored": 1.0}
APART = {"sampling/sampling_logp_difference/mean": 0.2, "sampling/age_steps": 0.0}
EMPTY = {"data/rollouts_kept": 0.0, "groups/frac_updates_empty": 1.0}


def told(
    changes: list[dict[str, float]],
    failed: int = 0,
    steps: int = 100,
    before: Sequence = (),
    on_failure: float | str = 0.0,
    why: str = "",
) -> list[list[str]]:
    """The questions that each step in turn brings up; `failed` rows in every step. before: steps
    of the run that were done when it was resumed. why: what an episode that failed in each step
    said.
    """
    reward = SimpleNamespace(max_unscored_share=0.5, on_failure=on_failure)
    config = SimpleNamespace(model_dump=lambda include: {}, reward=reward)
    failure = Failure(0, "mine", Exit.EXCEPTION, "ZeroDivisionError: division by zero")
    grading = SimpleNamespace(failures=[failure] * failed)
    log = SimpleNamespace(logged={"exit_why": {7: why}} if why else {})
    world = SimpleNamespace(services=SimpleNamespace(grading=grading, log=log))
    watch, found = Watch(), []
    watch.begin(before, reward)
    for done, changed in enumerate(changes, start=1):
        run = SimpleNamespace(world=world, done=done, finished=done == steps, config=config)
        found.append([f.question for f in watch.step(run, {**HEALTHY, **changed})])
    return found


@pytest.mark.parametrize(
    ("changed", "question"),
    [
        (NO_SIGNAL, "Which groups give no signal?"),
        ({"completions/clipped_ratio": 1.0}, "Are answers cut off?"),
        ({"groups/frac_updates_empty": 1.0}, "Why is the loss 0?"),
        (EMPTY, "Why is the loss 0?"),
        ({"data/rollouts_kept": 0.0}, "Why is the loss 0?"),  # a plan that makes no update then
        (APART, "Do sampler and trainer disagree?"),
    ],
)
def test_each_kind_is_told_once_and_only_when_it_lasts(changed, question):
    assert told([changed] * STEPS) == [[]] * (STEPS - 1) + [[question]]
    assert told([changed] * 3 * STEPS).count([question]) == 1
    broken = [*[changed] * (STEPS - 1), {}, *[changed] * (STEPS - 1)]
    assert told(broken) == [[]] * len(broken)


def test_a_gap_that_is_the_methods_own_is_no_mismatch():
    assert told([{**APART, "sampling/age_steps": 1.0}] * STEPS) == [[]] * STEPS
    assert told([{**APART, "updates/of_policy": 2.0}] * STEPS) == [[]] * STEPS


def test_rewards_that_fail_later_are_a_warning():
    assert told([{}, *[UNSCORED] * STEPS], failed=8)[-1] == ["Do reward functions fail?"]


def test_a_resumed_run_remembers_that_it_had_rewards():
    before = [{"step": 0}, {"step": 1, **HEALTHY}]
    assert told([UNSCORED] * STEPS, failed=8, before=before)[-1] == ["Do reward functions fail?"]
    with pytest.raises(RunStopped, match="no answer got a reward"):
        told([UNSCORED] * STEPS, failed=8, before=[{"step": 0}, {"step": 1, **UNSCORED}])


def test_a_method_that_learns_from_equal_rewards_is_left_alone():
    assert told([{**NO_SIGNAL, "advantage/abs_mean": 0.7}] * STEPS) == [[]] * STEPS


@pytest.mark.parametrize(("changed", "failed"), [(UNSCORED, 8), (EMPTY, 8), (UNSCORED, 0)])
def test_rewards_that_fail_from_the_start_stop_the_run(changed, failed):
    assert told([changed] * (STEPS - 1), failed) == [[]] * (STEPS - 1)
    with pytest.raises(RunStopped, match=f"no answer got a reward in the first {STEPS} steps"):
        told([changed] * STEPS, failed)
    with pytest.raises(RunStopped, match="in the first 2 steps"):
        told([changed] * 2, failed, steps=2)


RAISED = {"exit/exception": 0.75, "exit/timeout": 0.25, "reward_std": 0.0}


def test_episodes_that_all_fail_from_the_start_stop_the_run():
    """Failing pays them nothing, so they have scores, all the same."""
    first = f"every episode failed in the first {STEPS} steps.* The first failure: no key"
    with pytest.raises(RunStopped, match=first):
        told([RAISED] * STEPS, why="no key")
    one_of_them_worked = {**RAISED, "exit/exception": 0.7}
    assert told([one_of_them_worked, *[RAISED] * STEPS], why="no key") == [[]] * (STEPS + 1)
    paid = {**RAISED, "reward_std": 0.1}  # recorded ones that failed and earned something
    assert told([paid] * STEPS, why="no key") == [[]] * STEPS
    answers_of_rewards = told([RAISED] * STEPS)
    assert answers_of_rewards == [[]] * STEPS
    with pytest.raises(RunStopped, match="every episode failed"):
        told([RAISED] * STEPS, why="no key", before=[{"step": 1, **HEALTHY, **RAISED}])


def test_the_stop_names_the_failure_and_the_doctor():
    with pytest.raises(RunStopped) as stopped:
        told([UNSCORED], failed=8, steps=1)
    said = str(stopped.value)
    assert said.startswith("no answer got a reward in the first step, so nothing is learned. The ")
    assert "(exception): ZeroDivisionError: division by zero" in said
    assert "strop doctor --data FILE --reward SOURCE" in said
    with pytest.raises(RunStopped) as stopped:
        told([{**UNSCORED, "exit/reward_bug": 1.0}], failed=8, steps=1)
    assert "timeout_seconds" not in str(stopped.value)
    with pytest.raises(RunStopped, match=r"raise reward\.timeout_seconds"):
        told([{**UNSCORED, "exit/timeout": 1.0}], failed=8, steps=1)


def test_too_many_answers_without_a_score_stop_the_run_and_name_the_cause():
    lost = {"exit/unreachable": 0.45, "exit/exception": 0.3}
    assert told([lost] * 40) == [[]] * 40
    # ... of the answers' own failures those that are not counted
    with pytest.raises(RunStopped) as stopped:
        told([lost] * 20, failed=1, on_failure="unscored")
    assert str(stopped.value) == (
        "75% of 20 steps' answers have no score: unreachable (45%), exception (30%). Fix it and "
        "resume; reward.max_unscored_share says how many may have none"
    )
    before = [{"step": n, **HEALTHY, **lost} for n in range(1, 16)]  # of a run that was resumed
    assert told([lost] * 4, before=before, on_failure="unscored") == [[]] * 4
    with pytest.raises(RunStopped, match="75% of 20 steps"):
        told([lost] * 5, before=before, on_failure="unscored")
    stopped = [{"step": n, **HEALTHY, **lost} for n in range(1, 21)]  # it was stopped for these
    assert told([lost] * 19, before=stopped, on_failure="unscored") == [[]] * 19
    # ten steps of twenty and a bit
    most = [{"exit/start_failed": 1.0}] * 10
    assert told([{}] * 10 + most) == [[]] * 20
    with pytest.raises(RunStopped, match=r"start_failed \(5[0-9]%\)"):
        told([{}] * 9 + [{"exit/start_failed": 0.2}] + most)


def test_answers_that_are_pending_are_no_failures():
    assert told([{"exit/pending": 1.0, "rewards/frac_unscored": 0.0}] * 25) == [[]] * 25
    lines = [{"step": 1, "rewards/frac_unscored": 0.0, "exit/pending": 0.9}]
    assert unscored(RunFiles(lines, {}, [])).status == "ok"


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "def fails(completions, **columns):\n"
        "    return [1 / 0 for text in completions]\n\n"
        "def same(completions, **columns):\n    return [0.0] * len(completions)\n"
    )
    return path


def words(lab: Lab, reward: str, *more: str) -> list[str]:
    given = lab.arguments(*more)
    given[given.index("--reward") + 1] = reward
    return ["train", *given]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("recipe", ["grpo", "dapo"])
def test_a_run_whose_rewards_all_fail_ends_with_1(
    recipe: str, strop: Strop, lab: Lab, rewards: Path, tmp_path: Path
) -> None:
    more = ["training.steps=9", "--out", str(tmp_path / "run")]
    more += ["curation.max_rounds=2"] if recipe == "dapo" else []
    result = strop(*words(lab, f"{rewards}:fails", recipe, *more))
    assert result.code == 1
    assert "no answer got a reward in the first 5 steps" in result.err
    assert "ZeroDivisionError" in result.err
    assert len(lines(tmp_path / "run")) == STEPS


def test_a_run_without_signal_is_warned_of_once(
    strop: Strop, lab: Lab, rewards: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = strop(*words(lab, f"{rewards}:same", "training.steps=7", "--quiet", "--out", str(out)))
    assert result.code == 0
    assert result.out.count("warning: Which groups give no signal? 100% of the groups") == 1
    assert f"strop doctor {out}" in result.out
    doctor = json.loads(strop("doctor", out, "--json").out)["findings"]
    assert any(f["question"] == "Which groups give no signal?" for f in doctor)


def test_a_policy_that_samples_no_token_stops_the_run_and_says_why():
    nothing = {**HEALTHY, "completions/max_length": 0.0}
    assert told([{**nothing, "completions/max_length": 3.0}, *[nothing] * STEPS]) == (
        [[]] * (STEPS + 1)
    )
    with pytest.raises(RunStopped, match=f"in the first {STEPS} steps the policy sampled no token"):
        told([nothing] * STEPS, before=[{"step": 1, **nothing}])
    assert told([nothing] * STEPS, before=[{"step": 1, **HEALTHY}]) == [[]] * STEPS
    too_long = {**nothing, "exit/token_limit": 1.0}
    with pytest.raises(
        RunStopped, match=r"\(rollouts ended with: token_limit 100%\)\. What the mod"
    ):
        told([too_long] * STEPS)


def test_rewards_outside_the_declared_range_are_told_of_once_at_the_first_step():
    outside = {"episode/out_of_range_fraction": 0.5}
    question = "Do rewards lie in the range that the environment declares?"
    assert told([{}, outside, outside, {}, outside]) == [[], [question], [], [], []]
