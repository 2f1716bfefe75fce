"""The scores of runs: numbers by hand from made-up metrics, and from a real comparison's files."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from strop.api.inference import checkpoint_of
from strop.comparison import carry_out, tuning
from strop.comparison.plan import START, Entry, Plan, Scoring
from strop.comparison.runs import Job, last_step
from strop.comparison.scores import RequestedMetrics, Row, at_budget, axis, by_metric, collect
from strop.comparison.table import write_tables
from strop.report.run_folder import Run
from strop.support.errors import UserError

STEPS = np.arange(1, 5)


def run(**numbers: list[float]) -> Run:
    """A run of four steps: 10 tokens an answer, 8 answers, 4 of them kept, half with a gradient."""
    every = {
        "step_time": [1.0, 2.0, 3.0, 4.0],
        "completions/mean_length": [10.0] * 4,
        "data/rollouts_sampled": [8.0] * 4,
        "data/rollouts_kept": [4.0] * 4,
        "groups/frac_rollouts_with_gradient": [0.5] * 4,
        **numbers,
    }
    found = {
        key: (STEPS if len(values) == 4 else np.array([0, 2, 4]), np.array(values))
        for key, values in every.items()
    }
    return Run("run", found, 4, None, (), ())


def plan(**scoring: object) -> Plan:
    entries = (Entry("a", "[evaluation]\nevery = 2"), Entry("b", "[evaluation]\nevery = 2"))
    given = {"at": (4,), "ks": (1,), "samples": 1, **scoring}
    return Plan(entries, (0,), 4, Scoring(**given), "a")  # type: ignore[arg-type]


def test_numbers_that_no_run_has_are_refused_while_runs_go_on(tmp_path: Path) -> None:
    jobs = [Job(entry, 0, tmp_path) for entry in plan().entries]
    target = RequestedMetrics({"--target": "pass1"}, ())
    target.check(jobs)  # nothing is written yet
    for job in jobs:
        job.folder.mkdir(parents=True)
        lines = [{"step": 0, "eval/validation/pass@1": 0.1, "eval/validation/pass@1/low": 0.0},
                 {"step": 1, "reward": 0.5, job.entry.label: 1.0}]  # fmt: skip
        (job.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(UserError, match=r"pass1: a seed 0 does not have .*; there are pass@1: "):
        target.check(jobs)
    RequestedMetrics({"--target": "pass@1"}, ()).check(jobs)
    RequestedMetrics({"--target": "reward"}, ()).check(jobs)
    with pytest.raises(UserError, match="--tune-by reward: a seed 0 does not have"):
        RequestedMetrics({"--tune-by": "reward"}, ()).check(jobs)  # validation alone chooses
    RequestedMetrics({"--tune-by": "eval/validation/pass@1"}, ()).check(jobs)
    means = RequestedMetrics({}, ("b", "rewrd"))  # b alone logs one of them
    jobs[0].state = "done"
    means.check(jobs)
    jobs[1].state = "done"
    with pytest.raises(UserError, match=r"--mean rewrd: no run has .*; there are reward, "):
        means.check(jobs)


def test_axes_of_tokens_and_seconds() -> None:
    plain = run()
    assert axis(plain, "steps")[1].tolist() == [1, 2, 3, 4]
    assert axis(plain, "seconds")[1].tolist() == [1, 3, 6, 10]
    assert axis(plain, "sampled")[1].tolist() == [80, 160, 240, 320]  # 8 answers of 10 tokens
    assert axis(plain, "trained")[1].tolist() == [20, 40, 60, 80]  # half of 4 kept ones
    probing = run(**{
        "services/tokens_sampled": [5.0, 0.0, 0.0, 0.0],
        "rollout/tokens_thrown_away": [1.0, 2.0, 3.0, 4.0],
    })  # fmt: skip
    assert axis(probing, "sampled")[1].tolist() == [86, 168, 251, 335]
    forking = run(**{"rollout/tokens_shared": [0.0, 6.0, 6.0, 8.0]})
    assert axis(forking, "sampled")[1].tolist() == [80, 154, 228, 300]
    counted = run(**{"data/tokens_sampled": [5.0, 6.0, 7.0, 8.0]})  # newer runs count them
    assert axis(counted, "sampled")[1].tolist() == [5, 11, 18, 26]


def test_tokens_are_those_until_the_scored_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = collected(tmp_path, monkeypatch, run(), at=(3,))
    assert (row.found["sampled"], row.found["trained"], row.found["seconds"]) == (240, 60, 6)


def test_scores_at_equal_tokens_are_interpolated() -> None:
    # a validation at 0, 160 and 320 tokens; b samples half as many answers: 0, 80, 160
    a = run(**{"eval/validation/pass@1": [0.0, 0.4, 0.8], "eval/validation/pass@1/low": [0.0] * 3})
    b = run(**{
        "eval/validation/pass@1": [0.1, 0.2, 0.5], "data/rollouts_sampled": [4.0] * 4,
        "eval/validation/num_unscored": [0.0] * 3,
    })  # fmt: skip
    rows = at_budget(plan(by="sampled", at=()), {"a": {0: a}, "b": {0: b}})
    assert [(row.label, row.step, row.found["sampled"]) for row in rows] == [
        ("a", 2, 160.0), ("b", 4, 160.0),
    ]  # fmt: skip
    assert [row.found["pass@1"] for row in rows] == pytest.approx([0.4, 0.5])
    asked = plan(by="sampled", at=(), target=("pass@1", 0.4), means=("step_time",))
    (first, _) = at_budget(asked, {"a": {0: a}, "b": {0: b}})
    assert first.found["mean/step_time"] == 1.5  # of its two steps
    assert first.found["steps to pass@1 0.4"] == 2
    b = run(**{"eval/validation/pass@1": [0.1, 0.2, 0.5], "data/rollouts_sampled": [3.0] * 4})
    rows = at_budget(plan(by="sampled", at=()), {"a": {0: a}, "b": {0: b}})
    # 120 tokens: a is three quarters of the way to its second validation, in its second step
    assert (rows[0].step, rows[0].found["sampled"]) == (2, 120.0)
    assert rows[0].found["pass@1"] == pytest.approx(0.3)
    named = run(**{"eval/low/pass@1": [0.0, 0.4, 0.8]})  # of a validation set with a name
    (row,) = at_budget(plan(by="sampled", at=()), {"a": {0: named}})
    assert row.found["eval/low/pass@1"] == pytest.approx(0.8)
    counts = {"eval/validation/num_unscored": [0.0, 0.0, 8.0]}  # the last one has no score
    scores = {"eval/validation/pass@1": (np.array([0, 2]), np.array([0.1, 0.4]))}
    last = dataclasses.replace(run(), numbers={**run(**counts).numbers, **scores})
    (row,) = at_budget(plan(by="sampled", at=()), {"a": {0: last}})
    assert "pass@1" not in row.found
    nothing = run(**{"data/rollouts_sampled": [0.0] * 4})
    with pytest.raises(UserError, match="b has spent no tokens sampled"):
        at_budget(plan(by="sampled", at=()), {"a": {0: a}, "b": {0: nothing}})


def test_settings_are_chosen_by_the_last_validation_or_that_at_equal_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = {"eval/low/pass@1": [0.3] * 3}
    whole = run(**{"eval/validation/pass@1": [0.0, 0.4, 0.8]}, **low)
    half = run(
        **low, **{"eval/validation/pass@1": [0.1, 0.2, 0.5], "data/rollouts_sampled": [4.0] * 4}
    )
    made = {"a": whole, "b": half}
    monkeypatch.setattr(tuning, "read_run", lambda folder: made[folder.name.partition("-")[0]])
    for scoring, at_a in (({}, 0.8), ({"by": "sampled", "at": ()}, 0.4)):
        the = plan(**scoring)
        jobs = [Job(entry, 0, tmp_path, state="done") for entry in the.entries]
        found = tuning.validation_scores(the, jobs, "pass@1")
        assert found == {"a": {0: pytest.approx(at_a)}, "b": {0: pytest.approx(0.5)}}
        assert tuning.validation_scores(the, jobs, "eval/low/pass@1")["a"][0] == pytest.approx(0.3)


def test_a_last_validation_without_a_score_chooses_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unscored = run(**{"eval/validation/num_unscored": [0.0, 8.0, 8.0]})
    scores = {"eval/validation/pass@1": (np.array([0]), np.array([0.9]))}  # before training
    broken = dataclasses.replace(unscored, numbers={**unscored.numbers, **scores})
    made = {"a": run(**{"eval/validation/pass@1": [0.0, 0.4, 0.8]}), "b": broken}
    monkeypatch.setattr(tuning, "read_run", lambda folder: made[folder.name.partition("-")[0]])
    jobs = [Job(entry, 0, tmp_path, state="done") for entry in plan().entries]
    with pytest.raises(UserError, match=r"b seed 0 has no .* last validation; it has num_unscored"):
        tuning.validation_scores(plan(), jobs, "pass@1")
    assert tuning.validation_scores(plan(), jobs, "pass@1", needed=False) == {"a": {0: 0.8}}


def test_late_numbers_are_those_of_the_last_ten_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = (np.array([1, 2, 11, 12]), np.array([1.0, 2.0, 3.0, 4.0]))  # scored in these alone
    made = dataclasses.replace(run(), numbers={**run().numbers, "reward": rewards}, num_steps=24)
    for step, mean in ((2, 1.5), (11, 2.5), (12, 3.5), (24, None)):
        the = Plan(plan().entries, (0,), 24, Scoring(at=(step,), ks=(1,), samples=1), "a")
        job = Job(the.entries[0], 0, tmp_path / str(step), state="done")
        job.folder.mkdir(parents=True)
        job.scores_file(step).write_text("{}")
        monkeypatch.setattr("strop.comparison.scores.read_run", lambda _: made)
        assert collect(the, [job])[0][0].found.get("late/reward") == mean


def test_methods_with_other_rewards_or_without_scores_have_a_note(tmp_path: Path) -> None:
    texts = ("[reward]\ntimeout_seconds = 1.0", "[reward]\non_failure = 0.5", "", "")
    entries = tuple(Entry(name, text) for name, text in zip("abcd", texts, strict=True))
    the = Plan(entries, (0,), 4, Scoring(at=(4,), ks=(1,), samples=1), "a")
    (other,) = carry_out._other_rewards(the)  # a timeout is no other score
    assert other.startswith("note on b: each run's answers are scored by its own rewards")
    key = "rewards/frac_unscored"
    runs = {
        "a": {0: run()},
        "b": {0: run(**{key: [0.0, 0.0, 0.0, 0.1]})},
        "c": {0: run(**{key: [0.0] * 4}), 7: run(**{key: [0.0, 1.0, 1.0, 1.0]})},
    }
    (note,) = carry_out._unscored(runs, tmp_path)
    assert note.startswith("note on c: 75.0% of the rollouts of seed 7 trained nothing: no rew")


def test_held_out_answers_without_a_score_have_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the = plan(start=True)
    counts = {"pass@1": 0.5, "num_rollouts": 9.0, "num_unscored": 0.0}
    jobs = [Job(entry, 0, tmp_path, state="done") for entry in the.entries]
    for job, unscored in zip(jobs, (0.0, 3.0), strict=True):
        job.folder.mkdir(parents=True)
        job.scores_file(4).write_text(json.dumps({**counts, "num_unscored": unscored}))
    jobs[0].scores_file(0).write_text(json.dumps({**counts, "num_unscored": 1.0}))
    monkeypatch.setattr("strop.comparison.scores.read_run", lambda _: run())
    start, b = carry_out._unscored_heldout(collect(the, jobs)[0])
    assert start.startswith(f"note on {START}: 10.00% of the held-out answers have no score")
    assert b.startswith("note on b: 25.00% of the held-out answers of seed 0 after step 4 have no")


def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Run, **scoring: object) -> Row:
    the = plan(**scoring)
    job = Job(the.entries[0], 0, tmp_path, state="done")
    job.folder.mkdir(parents=True)
    job.scores_file(the.scoring.at[-1]).write_text(
        json.dumps({"pass@1": 0.5, "maj@1": 0.5, "ece": None})
    )
    monkeypatch.setattr("strop.comparison.scores.read_run", lambda _: made)
    waiting = Job(the.entries[1], 0, tmp_path)
    rows, runs = collect(the, [job, waiting])
    assert list(runs) == ["a"]
    (row,) = rows
    return row


def test_the_target_is_counted_to_where_it_is_first_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(**{"eval/validation/pass@1": [0.1, 0.6, 0.4]})
    row = collected(tmp_path, monkeypatch, made, target=("pass@1", 0.5))
    found = {key: value for key, value in row.found.items() if " to " in key}
    assert found == {
        "reached to pass@1 0.5": 1.0, "steps to pass@1 0.5": 2.0,
        "sampled to pass@1 0.5": 160.0, "seconds to pass@1 0.5": 3.0,
    }  # fmt: skip
    assert row.found["pass@1"] == 0.5
    assert "ece" not in row.found


def test_a_target_that_is_never_reached_has_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(**{"eval/validation/pass@1": [0.1, 0.3, 0.4]})
    row = collected(tmp_path, monkeypatch, made, target=("pass@1", 0.5))
    assert {k: v for k, v in row.found.items() if " to " in k} == {"reached to pass@1 0.5": 0.0}


def test_the_share_inside_a_band_leaves_the_first_quarter_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of steps 2 to 4 one is inside 0.3 to 0.4 and one below
    made = run(entropy=[0.35, 0.5, 0.4, 0.2], **{"groups/frac_mixed": [0.1, 0.2, 0.3, 0.4]})
    row = collected(tmp_path, monkeypatch, made, band=(0.3, 0.4), means=("groups/frac_mixed",))
    assert row.found["band"] == pytest.approx(1 / 3)
    assert row.found["below"] == pytest.approx(1 / 3)
    assert row.found["mean/groups/frac_mixed"] == pytest.approx(0.25)
    assert row.found["late/entropy"] == pytest.approx(1.45 / 4)


def test_a_method_with_a_band_of_its_own_is_measured_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(**{
        "entropy": [0.35, 0.5, 0.4, 0.2],
        "entropy_control/low": [0.0, 0.4, 0.5, 0.1], "entropy_control/high": [1.0, 0.6, 0.6, 0.3],
    })  # fmt: skip
    row = collected(tmp_path, monkeypatch, made)
    assert (row.found["band"], row.found["below"]) == pytest.approx((2 / 3, 1 / 3))


def test_numbers_that_are_not_finite_are_left_out() -> None:
    rows = [Row("a", 0, 4, {"x": 1.0, "y": float("nan")}), Row("a", 1, 2, {"x": 2.0})]
    assert by_metric(rows) == {"x": {"a": {0: 1.0, 1: 2.0}}}
    assert by_metric(rows, 4) == {"x": {"a": {0: 1.0}}}


def test_damaged_scores_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    the = plan()
    job = Job(the.entries[0], 0, tmp_path, state="done")
    job.folder.mkdir(parents=True)
    job.scores_file(4).write_text("{")
    monkeypatch.setattr("strop.comparison.scores.read_run", lambda _: run())
    with pytest.raises(UserError, match=r"heldout-4.json.*score again"):
        collect(the, [job])


def test_the_files_of_a_comparison_say_what_its_runs_do(made):
    table = list(csv.DictReader((made.folder / "scores.csv").read_text().splitlines()))
    assert [(line["method"], line["seed"], line["step"]) for line in table] == [
        (START, "", "0"), ("grpo", "0", "2"), ("rloo training.lr=2e-3", "0", "2"),
    ]  # fmt: skip
    for line in table[1:]:
        folder = (
            made.folder
            / "runs"
            / ("grpo-0" if line["method"] == "grpo" else "rloo_training_lr_2e_3-0")
        )
        heldout = json.loads((folder / "heldout-2.json").read_text())
        assert float(line["pass@2"]) == pytest.approx(heldout["pass@2"], abs=1e-6)
        assert heldout["num_rollouts"] == 24  # twelve rows of the file, two answers each
        lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
        mixed = [each["groups/frac_mixed"] for each in lines if each["step"] > 0]
        assert float(line["mean/groups/frac_mixed"]) == pytest.approx(np.mean(mixed), abs=1e-5)
        assert last_step(folder) == 2
    start = json.loads((made.folder / "start.json").read_text())
    assert float(table[0]["pass@1"]) == pytest.approx(start["pass@1"], abs=1e-6)
    text = (made.folder / "table.md").read_text()
    assert "1 seed: cells hold its numbers. Fewer than 5 seeds decide nothing." in text
    assert "| `before training` | `grpo` | `rloo training.lr=2e-3` |" in text
    assert text in made.out
    assert f"wrote {made.folder}/compare.html" in made.out


def test_the_start_of_a_run_is_its_model(made, lab):
    run = str(made.folder / "runs/grpo-0")
    assert checkpoint_of(run, 0, start=True)[1] == str(lab.model)
    assert checkpoint_of(run, 2)[1] == f"{run}/checkpoints/step-000002"
    with pytest.raises(UserError, match="name two models"):
        checkpoint_of(run, 2, start=True)


def test_the_model_before_training_has_one_line_for_all_scored_steps(tmp_path: Path) -> None:
    rows = [Row(START, 0, step, {"pass@1": 0.1}) for step in (2, 4)]
    rows += [Row("a", 0, step, {"pass@1": 0.2}) for step in (2, 4)]
    write_tables(plan(at=(2, 4), start=True), rows, tmp_path)
    assert (tmp_path / "scores.csv").read_text().splitlines() == [
        "method,seed,step,pass@1", f"{START},,0,0.1", "a,0,2,0.2", "a,0,4,0.2",
    ]  # fmt: skip
