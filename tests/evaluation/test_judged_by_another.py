"""Validations scored by something other than the training reward, and where the two diverge."""

import json
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.diagnosis.validation import parted
from strop.evaluation.run import validator
from strop.report.run_folder import Numbers, Run
from strop.report.sections import sections
from strop.support.errors import UserError
from strop.training import loop
from strop.training.settings import config
from strop.training.settings.sections import EvaluationSettings

JUDGE = """
def long(completions, **columns):
    return [float(len(text) > 3) for text in completions]


def wants(completions, nowhere, **columns):
    return [1.0] * len(completions)
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("judge") / "judge.py"
    file.write_text(JUDGE)
    return file


def first_validation(runner: Any, lab: Any, folder: Path, **evaluation: Any) -> dict[str, Any]:
    raw = lab.raw(evaluation={"every": 3, **evaluation})
    raw["data"] |= {"validation_files": [f"hard={lab.data}", str(lab.data)]}
    run = runner.start(raw, folder)
    found: dict[str, Any] = loop._evaluated(run, validator(2, (1, 2), 0), {})
    run.close()
    return found


def test_another_source_scores_a_set_and_the_reward_is_told_beside(
    runner: Any, lab: Any, judge: Path, tmp_path: Path
) -> None:
    """With the reward itself as the source both are equal, and the other set is as it was."""
    plain = first_validation(runner, lab, tmp_path / "plain")
    same = first_validation(runner, lab, tmp_path / "same", reward=[f"hard={lab.rewards}:digits"])
    other = first_validation(runner, lab, tmp_path / "other", reward=[f"hard={judge}:long"])
    del plain["timing_s/eval"]
    assert plain.items() <= same.items()
    for end in ("", "/low", "/high"):
        told = plain[f"eval/hard/mean@n{end}"]
        assert same[f"eval/hard/training_reward{end}"] == told
        assert other[f"eval/hard/training_reward{end}"] == told
        assert other[f"eval/validation/mean@n{end}"] == plain[f"eval/validation/mean@n{end}"]
    assert other["eval/hard/mean@n"] != plain["eval/hard/mean@n"]
    assert not [name for name in other if name.startswith("eval/validation/training_reward")]


def test_a_source_without_a_name_scores_every_set_and_strop_eval(
    strop: Any, lab: Any, judge: Path, tmp_path: Path
) -> None:
    result = strop(
        "train", "grpo", *lab.arguments("--out", str(tmp_path / "run")), "evaluation.every=3",
        f"evaluation.reward={judge}:long", "training.best=eval/validation/mean@n", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    last = lines[-1]
    assert last["eval/validation/mean@n"] == last["eval/validation/pass@1"]
    assert "eval/validation/training_reward" in last
    words = ("eval", tmp_path / "run", "--split", "validation", "--samples", "2", "--k", "1")
    result = strop(*words, "--json")
    assert f"names {judge}:long" in result.err.replace("\n", "").replace(
        f"{lab.rewards}:digits, ", ""
    )
    found = json.loads(strop(*words, "--json", "--trust-files").out)
    assert found["mean@n"] == last["eval/validation/mean@n"]
    found = json.loads(strop(*words, "--json", "--reward", f"{lab.rewards}:digits").out)
    assert found["mean@n"] == last["eval/validation/training_reward"]


SUMMED = "count an answer as right where the weighted sum of"


def test_a_note_says_that_a_sum_of_rewards_counts_as_right(
    runner: Any, lab: Any, judge: Path, tmp_path: Path
) -> None:
    pair = [f"{lab.rewards}:digits", f"{judge}:long"]

    def told(name: str, functions: list[str], weights: list[float], **evaluation: Any) -> list[str]:
        raw = lab.raw(evaluation=evaluation)
        raw["reward"] = {"functions": functions, "weights": weights}
        raw["data"] |= {"validation_files": [f"hard={lab.data}", str(lab.data)]}
        notes = runner.start(raw, tmp_path / name).world.services.notes
        return [note for note in notes if SUMMED in note]

    (note,) = told("two", pair, [], every=1)
    assert "the weighted sum of digits and long is 1 or more" in note
    assert "set evaluation.reward=FUNCTION" in note
    assert told("other_set", pair, [], every=1, reward=[f"hard={judge}:long"]) == [note]
    assert told("judged", pair, [], every=1, reward=[f"{judge}:long"]) == []
    assert told("never", pair, [], every=0) == []
    assert told("one", pair[:1], [], every=1) == []
    assert told("weighted", pair, [1.0, 0.0], every=1) == []


def test_strop_eval_says_that_a_sum_of_rewards_counts_as_right(
    strop: Any, lab: Any, judge: Path
) -> None:
    words = ("eval", lab.model, "--data", lab.data, "--samples", "2", "--k", "1", "--json")
    one = ("--reward", f"{lab.rewards}:digits")
    words = (*words, "--prompts", "1", "--max-tokens", "2")
    single, double = (strop(*words, *each) for each in (one, (*one, "--reward", f"{judge}:long")))
    assert single.code == double.code == 0, (single.err, double.err)
    assert SUMMED not in single.err
    assert f"note: pass@k and maj@k {SUMMED} digits and long is 1 or more" in double.err
    assert json.loads(double.out)["mean@n"] >= json.loads(single.out)["mean@n"]


def test_functions_from_python_score_all_sets_or_one(lab: Any, tmp_path: Path) -> None:
    """They lie in the run's folder, beside the reward of the same name."""

    def scored(value: float) -> Any:
        return lambda completions, **columns: [value] * len(completions)

    def at_step(completions: Any, trainer_state: Any, **columns: Any) -> list[float]:
        return [trainer_state.global_step / trainer_state.max_steps] * len(completions)

    rows = [json.loads(line) for line in lab.data.read_text().splitlines()]
    given: dict[str, Any] = {
        "model": str(lab.model), "data": rows, "validation": {"easy": rows[:1], "hard": rows[1:2]},
        "reward": scored(0.25), "training_steps": 2, "rollout_max_tokens": 2,
        "sampling_num_prompts": 1, "sampling_num_rollouts": 2, "evaluation_every": 2,
        "evaluation_num_samples": 2, "progress": False,
    }  # fmt: skip
    for judge, easy, hard in ((at_step, 1.0, 1.0), ({"hard": scored(0.5)}, 0.25, 0.5)):
        run = strop.train(out=tmp_path / f"{hard}", evaluation_reward=judge, **given)
        last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert [last[f"eval/{name}/mean@n"] for name in ("easy", "hard")] == [easy, hard]
        assert last["eval/hard/training_reward"] == 0.25
    with pytest.raises(UserError, match="no validation set 'hurd'"):
        strop.train(out=tmp_path / "x", evaluation_reward={"hurd": scored(1.0)}, **given)
    with pytest.raises(UserError, match="evaluation_reward is a function: give it here by its pl"):
        strop.resume(run, evaluation_reward=scored(1.0))


def test_mistakes_show_before_the_first_step(
    runner: Any, lab: Any, judge: Path, tmp_path: Path
) -> None:
    for reward, told in (
        (["easy=math_verify"], "there is no validation set 'easy', there is validation"),
        (["math_verify", "exact_match"], "two sources score every set"),
        ([f"{judge}:wants"], "nowhere"),
        (["nothing"], "unknown reward 'nothing'"),
    ):
        raw = lab.raw(evaluation={"every": 1, "reward": reward})
        with pytest.raises(UserError, match=told):
            runner.start(raw, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_sets_find_their_own_source_first() -> None:
    settings = EvaluationSettings(reward=("math_verify", "hard=judge:FILE.toml"))
    assert settings.judges(["validation", "hard"]) == {
        "validation": "math_verify", "hard": "judge:FILE.toml"
    }  # fmt: skip
    assert EvaluationSettings(reward="hard=m:f(a=1)").judges(["hard", "x"]) == {"hard": "m:f(a=1)"}
    assert config.make({"evaluation": {"reward": "exact_match"}}).evaluation.judges([]) == {}


def line(step: int, score: float, reward: float, half: float = 0.05) -> dict[str, Any]:
    found: dict[str, Any] = {"step": step}
    for name, value in (("mean@n", score), ("training_reward", reward)):
        ends = (("", value), ("/low", value - half), ("/high", value + half))
        found |= {f"eval/validation/{name}{end}": number for end, number in ends}
    return found


def test_where_reward_and_evaluation_part_is_a_problem() -> None:
    def status(*lines: dict[str, Any]) -> str:
        found = parted([{"step": 1, "reward": 0.5}, *lines])
        return "none" if found is None else found.status

    assert status() == "none"
    assert status({"step": 2, "eval/validation/mean@n": 0.3}) == "none"
    assert status(line(0, 0.3, 0.3)) == "unknown"
    assert status(line(0, 0.3, 0.3), line(5, 0.5, 0.6)) == "ok"
    assert status(line(0, 0.3, 0.3), line(5, 0.5, 0.6), line(9, 0.38, 0.6)) == "problem"  # it fell
    assert status(line(0, 0.3, 0.3), line(5, 0.5, 0.6), line(9, 0.42, 0.6)) == "ok"  # within noise
    assert status(line(0, 0.3, 0.3), line(5, 0.5, 0.6), line(9, 0.38, 0.5)) == "ok"  # both fell
    assert status(line(0, 0.3, 0.3), line(5, 0.3, 0.41)) == "problem"  # the reward rose alone
    assert status(line(0, 0.3, 0.3), line(5, 0.3, 0.39)) == "ok"
    another = {"eval/a/mean@n": 0.3, "eval/a/training_reward": 0.3}  # of a set that is well
    assert status({**line(0, 0.3, 0.3), **another}, line(5, 0.3, 0.41)) == "problem"
    found = parted([line(0, 0.3, 0.3), line(5, 0.3, 0.41)])
    assert found is not None
    assert (
        "Since step 0 the score of validation went from 0.3 to 0.3, and the reward" in found.answer
    )


def test_the_report_draws_both() -> None:
    numbers = Numbers()
    for each in (line(0, 0.3, 0.3), line(5, 0.3, 0.41)):
        numbers.add(each)
    run = Run("run", numbers.series(), 5, None, (), ())
    charts = [chart for _, found in sections([run]) for chart in found]
    (chart,) = [chart for chart in charts if "Reward and evaluation" in chart.title]
    assert chart.title == "Reward and evaluation: validation"
