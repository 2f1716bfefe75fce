"""Costs fitted to runs whose engines measured their passes equal the costs behind them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.engines.base import Sums
from strop.planning.costs import likeliest_of_sums, typical
from strop.planning.course import Speed
from strop.planning.measured import measure
from strop.planning.simulate import simulate
from strop.planning.text import describe_measured
from strop.planning.work import Costs, Layout

SPEED = Speed(step=0.02, row=3e-4, cached=2e-5, read=1e-3, begin=0.01, answer=0.004)
COSTS = Costs(SPEED, reward=0.01, token=5e-4, rest=0.5)
PROMPT, SIZE = 10, 4
SLOWER = 1.5  # factor beside a worker that trains


def write_run(
    folder: Path, num_prompts: int = 8, slower: float = 1.0, even: bool = False, **more: float
) -> Path:
    """A run of twelve steps, at exact costs; `slower` is one of whose workers one trains."""
    rng = np.random.default_rng(num_prompts)
    (folder / "rollouts").mkdir(parents=True)
    lines, before = [], 0
    for step in range(1, 13):
        count = SIZE * num_prompts
        lengths = np.full(count, 20) if even else np.maximum(rng.lognormal(3, 0.8, count), 1)
        decode, prefill = Sums("rows", "tokens"), Sums("tokens")
        lengths = lengths.astype(int)
        for tick in range(lengths.max()):
            rows = int((lengths > tick).sum())
            tokens = rows * (PROMPT + tick)
            spent = SPEED.step + SPEED.row * rows + SPEED.cached * tokens
            decode.add(rows, tokens, slower * spent)
        for each in range(num_prompts):  # one after the other, of lengths that differ
            tokens = PROMPT + each
            prefill.add(tokens, slower * (SPEED.begin + SPEED.read * tokens))
        sums = {f"perf/decode/{name}": value for name, value in decode.as_dict().items()}
        sums |= {f"perf/prefill/{name}": value for name, value in prefill.as_dict().items()}
        engine = sums["perf/decode/seconds"] + sums["perf/prefill/seconds"]
        trained = int(lengths.sum()) + PROMPT * count
        rollout, reward = engine + slower * SPEED.answer * count, COSTS.reward * count
        update = slower * (COSTS.token * trained + 0.4)
        beside = {
            "asynchronous/collector_idle": 0.1, "timing_s/waiting": 0.7,
            "perf/collecting_s": rollout, "timing_s/rollout": 0.1,
        } if slower > 1 else {"timing_s/rollout": rollout}  # fmt: skip
        whole = update + 0.1 + (0.7 if slower > 1 else rollout + reward)
        lines.append({
            "step": step, "timing_s/reward": reward, "timing_s/update": update,
            "step_time": whole, "num_tokens": before + trained,
            "completions/mean_length": lengths.mean(),
            "completions/max_length": float(lengths.max()), "data/rollouts_sampled": count,
            "data/rollouts_kept": count, "sampling/age_steps": 0.0, **sums, **beside, **more,
        })  # fmt: skip
        before += trained
        columns = {
            "step": [step] * count, "uid": np.arange(count) // SIZE, "draw": [0] * count,
            "length": lengths,
        }  # fmt: skip
        pq.write_table(pa.table(columns), folder / f"rollouts/step-{step:06d}.parquet")
    text = "".join(json.dumps(line, default=float) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def same(speed: Speed, slower: float = 1.0) -> None:
    assert speed.weights is None  # which only assumed costs have
    for name in ("step", "row", "cached", "read", "begin", "answer"):
        value = getattr(SPEED, name)
        within = 0.05 if name == "answer" and slower > 1 else 0.02  # there by tokens, not answers
        assert getattr(speed, name) == pytest.approx(slower * value, rel=within), name


def test_one_run_tells_every_cost(tmp_path):
    folder = write_run(tmp_path / "a")
    found = measure([folder])
    same(found.costs.speed)
    assert found.apart == found.costs
    assert found.costs.reward == pytest.approx(COSTS.reward)
    assert found.warning == ""
    share = found.shares[0]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][3:]
    passes, seconds = (
        sum(line[f"perf/decode/{name}"] for line in lines) for name in ("passes", "seconds")
    )
    assert share == pytest.approx(SPEED.step * passes / seconds, rel=0.02)


def test_each_kind_of_layout_has_the_costs_of_its_kind(tmp_path):
    together, apart = write_run(tmp_path / "a"), write_run(tmp_path / "b", slower=SLOWER)
    found = measure([together, apart]).exchanging(2.0)
    same(found.costs_of(Layout(1, 1)).speed)
    other = found.costs_of(Layout(1, 1, False, 1))
    same(other.speed, SLOWER)
    assert other.token == pytest.approx(SLOWER * COSTS.token, rel=0.2)
    lines = [json.loads(line) for line in (apart / "metrics.jsonl").read_text().splitlines()]
    trained = (lines[-1]["num_tokens"] - lines[2]["num_tokens"]) / len(lines[3:])
    training = np.mean([line["timing_s/update"] for line in lines[3:]])
    # what the trainer waits is none of its steps'
    assert other.rest + other.token * trained == pytest.approx(training + 0.1, rel=0.01)
    assert (found.costs.exchange, other.exchange) == (2, 2)
    assert "where others train meanwhile:" in describe_measured(found)
    alone = measure([apart])
    assert alone.costs == alone.apart
    same(alone.costs.speed, SLOWER)


def test_a_run_that_puts_answers_off_tells_what_its_passes_cost(tmp_path):
    same(measure([write_run(tmp_path / "a", **{"partial/groups_left": 3.0})]).costs.speed)


def test_runs_that_measured_are_asked_before_those_that_did_not(tmp_path):
    one, old = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    lines = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
    kept = [
        {k: v * (2 if k == "timing_s/rollout" else 1) for k, v in line.items() if "perf/" not in k}
        for line in lines
    ]
    (old / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    same(measure([one, old]).costs.speed)
    assert measure([old]).costs.speed.answer == 0  # all of it is in a, b and c


def test_rows_of_one_length_leave_steps_and_rows_to_a_second_run(tmp_path):
    one = write_run(tmp_path / "a", even=True)
    assert "too similar" in measure([one]).warning
    both = measure([one, write_run(tmp_path / "b", 2, even=True)])
    assert both.warning == ""
    same(both.costs.speed)


def test_prompts_of_one_token_are_not_read(tmp_path):
    folder = write_run(tmp_path / "a")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    none = [{k: 0.0 if "prefill" in k else v for k, v in line.items()} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in none))
    speed = measure([folder]).costs.speed
    assert (speed.begin, speed.read) == (0, 0)
    assert speed.step == pytest.approx(SPEED.step, rel=0.02)


def test_the_plan_of_what_was_measured_is_what_was_measured(tmp_path):
    folder = write_run(tmp_path / "a", even=True)
    found = measure([folder, write_run(tmp_path / "b", 2, even=True)])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    spent = np.mean([line["step_time"] for line in lines[3:]])
    planned = simulate(found.costs, found.work, Layout(1, 1)).step_seconds
    # all rows are let in at once, and one after the other in the run, where 28 more tokens are read
    assert planned == pytest.approx(spent - 7 * SPEED.begin - 28 * SPEED.read, rel=0.005)


def test_least_squares_of_sums_are_those_of_the_passes():
    rng = np.random.default_rng(0)
    terms = np.column_stack([np.ones(400), rng.uniform(1, 90, 400), rng.uniform(10, 4000, 400)])
    seconds = terms @ [3.0, 0.05, 0.002] * rng.uniform(0.98, 1.02, 400)
    whole = np.column_stack([terms, seconds])
    costs, shares, unsure = likeliest_of_sums(
        whole.T @ whole, 400, np.full(3, 1 / 3), whole.sum(axis=0)
    )
    plain = np.linalg.lstsq(terms, seconds, rcond=None)[0]
    assert costs.tolist() == pytest.approx(plain.tolist(), rel=0.02)
    assert (terms @ costs).sum() == pytest.approx(seconds.sum())
    assert shares.sum() == pytest.approx(1)
    assert (unsure < 0.02).all()
    mixed = whole.sum(axis=0)[:3] * costs / seconds.sum()
    assert shares.tolist() == pytest.approx(mixed.tolist(), rel=0.01)


def test_passes_that_are_all_alike_have_finite_costs():
    """Of one pass, and without a term, the products have a rank of 1, but for rounding."""
    for rows in np.linspace(2.0, 90.0, 60):
        whole = np.array([[1.0, rows, 0.0, 3 + 0.05 * rows]])
        found = likeliest_of_sums(whole.T @ whole, 1, np.full(3, 1 / 3), whole.sum(axis=0))
        assert all(np.isfinite(each).all() for each in found)
        assert whole[0, :3] @ found[0] == pytest.approx(whole[0, 3])


def test_steps_that_something_else_slowed_do_not_count(tmp_path):
    folder = write_run(tmp_path / "a")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines[4:8]:  # every pass of it, and what is beside them
        for name in line:
            if name.startswith("timing_s/") or name == "step_time" or name.endswith("seconds"):
                line[name] *= 9.0 if name.endswith("seconds_seconds") else 3.0
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, plain = measure([folder]), measure([write_run(tmp_path / "b")])
    slowed, calm = (
        simulate(each.costs, plain.work, Layout(1, 1)).step_seconds for each in (found, plain)
    )
    assert slowed == pytest.approx(calm, rel=0.1)  # 1.9 times as much by the mean of all steps


def test_the_middle_of_what_is_expected():
    # ratios 1, 2 and 9 of which the second makes up most
    assert typical(np.array([1.0, 16.0, 9.0]), np.array([1.0, 8.0, 1.0])) == pytest.approx(2)
    assert typical(np.array([3.0, 5.0, 7.0, 1.0]), np.array([1.0, 1.0, 1.0, 0.0])) == 5
