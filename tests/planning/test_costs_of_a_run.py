"""Costs fitted to a run's numbers equal those behind them; errors if they cannot be fitted."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.planning.costs import _decoded, likeliest
from strop.planning.lengths import log_normal
from strop.planning.measured import measure
from strop.planning.recorded import Recorded, read_run
from strop.planning.simulate import simulate
from strop.planning.work import Layout
from strop.support.errors import UserError

STEP, ROW, CACHED, TOKEN, REST = 0.02, 3e-4, 2e-6, 5e-4, 0.4
PROMPT = 10


def write_run(
    folder: Path, num_prompts: int = 8, num_steps: int = 12, recorded: int = 1, **more: float
) -> Path:
    """A run of 4 answers to a prompt, of lengths that differ from step to step, at exact costs."""
    rng = np.random.default_rng(num_prompts)
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.toml").write_text("[training]\nnum_slots = 64\n", encoding="utf-8")
    lines, tokens = [], 0
    for step in range(1, num_steps + 1):
        lengths = np.maximum(rng.lognormal(rng.uniform(2, 5), 0.8, 4 * num_prompts), 1).astype(int)
        seen = (PROMPT * lengths + lengths * (lengths - 1) / 2).sum()
        trained = int(lengths.sum()) + PROMPT * len(lengths)
        tokens += trained
        decoded = STEP * lengths.max() + ROW * lengths.sum() + CACHED * seen
        update, reward = TOKEN * trained + REST, 0.01 * len(lengths)
        decoded += TOKEN / 3 * PROMPT * num_prompts  # nearly: the fit takes a third of all updates
        lines.append({
            "step": step, "timing_s/rollout": decoded, "timing_s/reward": reward,
            "timing_s/update": update, "step_time": decoded + reward + update + 0.1,
            "num_tokens": tokens, "completions/mean_length": lengths.mean(),
            "completions/max_length": float(lengths.max()),
            "data/rollouts_sampled": len(lengths), "data/rollouts_kept": len(lengths),
            "sampling/age_steps": 0.0, **more,
        })  # fmt: skip
        if recorded and step % recorded == 0:
            columns = {
                "step": [step] * len(lengths), "uid": np.arange(len(lengths)) // 4,
                "draw": [0] * len(lengths), "length": lengths,
            }  # fmt: skip
            pq.write_table(pa.table(columns), folder / f"rollouts/step-{step:06d}.parquet")
    text = "".join(json.dumps(line, default=float) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_the_costs_that_made_the_numbers(tmp_path):
    runs = [write_run(tmp_path / "a", 8), write_run(tmp_path / "b", 2)]
    found = measure(runs)
    speed, costs, work = found.costs.speed, found.costs, found.work
    assert (speed.step, speed.row) == pytest.approx((STEP, ROW), rel=0.05)
    assert speed.cached == pytest.approx(CACHED, rel=0.2)
    assert costs.token == pytest.approx(TOKEN, rel=0.05)
    assert costs.rest == pytest.approx(REST + 0.1, rel=0.15)
    assert costs.reward == pytest.approx(0.01)
    assert found.warning == ""
    assert (work.num_groups, work.slots, work.kept) == (8, 64, 1)
    assert work.prompt == pytest.approx(PROMPT)
    assert len(work.groups) == 12 * 8
    assert {len(group) for group in work.groups} == {4}


def test_what_decode_steps_have_seen_of_answers_of_one_length(tmp_path):
    """Four answers of 5 tokens behind 10 of the prompt: each sees 10, 11, ... 14."""
    step = {"step": 1.0, "data/rollouts_sampled": 4.0, "completions/mean_length": 5.0,
            "completions/max_length": 5.0, "timing_s/rollout": 8.0}  # fmt: skip
    step |= {"tokens": 60.0, "num_tokens": 60.0, "data/rollouts_kept": 4.0}
    run = Recorded(tmp_path, [step], {}, {}, measured=False, apart=False)
    assert run.prompt == PROMPT
    ((seconds, ticks, drawn, seen),) = _decoded(run, 0.0)
    assert (seconds, ticks, drawn) == (8.0, 5, 20.0)
    assert seen == 4 * sum(range(PROMPT, PROMPT + 5))


def test_a_plan_for_what_was_measured_is_what_was_measured(tmp_path):
    folder = write_run(tmp_path / "a", 8, num_steps=60)
    found = measure([folder])
    few = write_run(tmp_path / "b", num_steps=4)
    assert [len(read_run(each).steps) for each in (folder, few)] == [57, 3]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    spent = np.mean([line["step_time"] for line in lines[3:]])
    # lengths of a step are alike in the run and mixed in the plan: its longest is longer
    planned = simulate(found.costs, found.work, Layout(1, 1), steps=200).step_seconds
    assert planned == pytest.approx(spent, rel=0.25)


def test_numbers_without_rollouts_need_lengths(tmp_path):
    folder = write_run(tmp_path / "a", 8, recorded=0)
    with pytest.raises(UserError, match=r"recorded no rollouts.*--lengths MEAN,P99"):
        measure([folder])
    found = measure([folder], [40.0, 200.0], prompts=3)
    assert found.costs.speed.step == pytest.approx(STEP, rel=0.25)
    assert found.work.num_groups == 3


def test_more_answers_than_slots_are_read_from_the_files(tmp_path):
    folder = write_run(tmp_path / "a", 32)  # 128 answers, 64 slots
    assert measure([folder]).costs.speed.step > 0
    with pytest.raises(UserError, match="more of them than the engine has slots"):
        measure([write_run(tmp_path / "b", 32, recorded=0)], [40.0])


def test_steps_that_are_alike_are_said_to_be(tmp_path):
    folder = write_run(tmp_path / "a", 8)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    one = json.loads(lines[0])
    same = [one | {"step": n, "num_tokens": n * one["num_tokens"]} for n in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in same))
    for path in list((folder / "rollouts").iterdir())[1:]:
        path.unlink()
    found = measure([folder])
    assert "too similar" in found.warning
    assert found.shares.sum() == pytest.approx(1)


def test_what_is_no_run_to_plan_from(tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        measure([tmp_path / "none"])
    ahead = write_run(tmp_path / "ahead", **{"asynchronous/collector_idle": 0.0})
    with pytest.raises(UserError, match=r"several steps at once.*did not measure"):
        measure([ahead])
    put_off = write_run(tmp_path / "a", **{"partial/groups_left": 3.0})
    with pytest.raises(UserError, match="postponed long answers"):
        measure([put_off])
    still = write_run(tmp_path / "b", **{"timing_s/rollout": 0.0})
    with pytest.raises(UserError, match="no step in which answers were drawn and timed"):
        measure([still])
    given = write_run(tmp_path / "d")
    text = (given / "metrics.jsonl").read_text().replace("sampling/age_steps", "other")
    (given / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match="no step in which answers were drawn"):
        measure([given])
    broken = write_run(tmp_path / "c")
    next((broken / "rollouts").iterdir()).write_bytes(b"half")
    with pytest.raises(UserError, match=r"is damaged .*: remove it"):
        measure([broken])
    other = pa.table({"step": [1], "length": [3]})
    pq.write_table(other, next((broken / "rollouts").iterdir()))
    with pytest.raises(UserError, match=r"is damaged .*: remove it"):
        measure([broken])


def test_a_distribution_of_lengths():
    found = np.concatenate(log_normal([100.0, 500.0], 8))
    assert found.mean() == pytest.approx(100, rel=0.05)
    assert np.percentile(found, 99) == pytest.approx(500, rel=0.1)
    assert set(np.concatenate(log_normal([7.0], 8))) == {7}
    assert log_normal([7.0], 5000)[0].shape == (5000,)
    for wrong in ([100.0, 50.0], [0.5], [float("nan")], [10.0, 1000.0], [float("inf")]):
        with pytest.raises(UserError, match="99th percentile"):
            log_normal(wrong, 8)


def test_terms_are_never_negative_and_sum_to_what_was_measured():
    rng = np.random.default_rng(0)
    terms = rng.uniform(1, 2, (30, 3))
    seconds = terms @ [3.0, 0.0, 1.0] * rng.uniform(0.97, 1.03, 30)
    costs, shares, unsure = likeliest(terms, seconds, np.full(3, 1 / 3))
    assert (costs >= 0).all()
    assert (terms @ costs).sum() == pytest.approx(seconds.sum())
    assert costs.tolist() == pytest.approx([3, 0, 1], abs=0.4)
    assert shares.sum() == pytest.approx(1)
    noisy = seconds * rng.uniform(0.5, 1.5, 30)  # with scatter the costs are less sure
    assert (likeliest(terms, noisy, np.full(3, 1 / 3))[2] > 1.5 * unsure).all()
    alike = likeliest(np.ones((30, 3)), np.ones(30), np.full(3, 1 / 3))
    assert alike[0].tolist() == pytest.approx([1 / 3] * 3)
    assert (alike[2] > unsure).all()
