"""A run from beginning to end: its log and the files that it leaves."""

import json
import math

import pyarrow.parquet as pq
import pytest
import torch
from commands import forked
from models import Lab, without_times
from runs import Runner, Watcher

from strop.support.errors import UserError
from strop.training import loop
from strop.training.learner import models
from strop.training.record import checkpoint
from strop.training.record.versions import read_environment
from strop.training.settings import config
from strop.training.setup import load_prompts

TRL_NAMES = [
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "step_time",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "rewards/digits/mean",
    "rewards/digits/std",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "sampling/sampling_logp_difference/mean",
]
OWN_NAMES = [
    "policy_loss",
    "rewards/frac_unscored",
    "groups/frac_all_0",
    "groups/frac_all_1",
    "groups/frac_mixed",
    "groups/frac_rollouts_with_gradient",
    "advantage/abs_mean",
    "num_rollouts",
    "data/epoch",
    "data/rollouts_sampled",
    "data/rollouts_kept",
    "timing_s/rollout",
    "timing_s/reward",
    "timing_s/update",
    "perf/tokens_per_s",
    "perf/rollouts_per_s",
    "perf/peak_mem_gb",
]


@pytest.fixture(scope="module")
def finished(lab, tmp_path_factory):
    """The folder of a run of three steps with a validation every second one."""
    folder = tmp_path_factory.mktemp("run") / "run"
    raw = lab.raw(evaluation={"every": 2}, training={"save_every": 1, "keep_checkpoints": 2})
    runner = Runner()
    watcher = runner.go(runner.start(raw, folder))
    return folder, watcher


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_each_step_is_logged_once_with_the_names_of_trl(finished):
    logged = lines(finished[0])
    assert [line["step"] for line in logged] == [0, 1, 2, 3]
    for line in logged[1:]:
        assert [name for name in (*TRL_NAMES, *OWN_NAMES) if name not in line] == []
    assert all(math.isfinite(value) for line in logged for value in line.values())


def test_validation_comes_before_the_first_step_at_intervals_and_at_the_end(finished):
    logged = lines(finished[0])
    have = [line["step"] for line in logged if "eval/validation/pass@1" in line]
    assert have == [0, 2, 3]
    for name in ("pass@2", "maj@2", "mean@n", "pass@1/low", "pass@1/high"):
        assert f"eval/validation/{name}" in logged[0]


def test_tokens_are_counted_over_the_run(finished):
    folder, _ = finished
    logged = lines(folder)
    total = 0
    for line in logged[1:]:
        rows = pq.read_table(folder / f"rollouts/step-{line['step']:06d}.parquet").to_pylist()
        total += sum(row["length"] + len(row["prompt"]) for row in rows)
        assert line["num_tokens"] == total
        assert line["completions/mean_length"] == sum(r["length"] for r in rows) / len(rows)


def test_the_rollouts_hold_the_texts_that_were_scored(finished, lab):
    folder, _ = finished
    prompts = [json.loads(line)["prompt"] for line in lab.data.read_text().splitlines()]
    for line in lines(folder)[1:]:
        rows = pq.read_table(folder / f"rollouts/step-{line['step']:06d}.parquet").to_pylist()
        assert len(rows) == 8
        for row in rows:
            share = sum(c.isdigit() for c in row["completion"]) / max(len(row["completion"]), 1)
            assert row["reward"] == pytest.approx(share)
            assert row["reward/digits"] == pytest.approx(share)
            assert row["prompt"] == prompts[row["uid"]]
            assert row["step"] == line["step"]
            assert row["scored"]
            assert row["truncated"] or row["length"] < 6 or len(row["completion"]) < 6
        assert line["reward"] == pytest.approx(sum(r["reward"] for r in rows) / 8)
        assert line["completions/clipped_ratio"] == sum(r["truncated"] for r in rows) / 8


def test_the_newest_checkpoints_stay_and_load_as_models(finished):
    folder, _ = finished
    kept = checkpoint.complete(folder / "checkpoints")
    assert [place.name for place in kept] == ["step-000002", "step-000003"]
    loaded = models.load(str(kept[-1]))
    before = models.load(str(kept[0]))
    moved = [
        float((a - b).detach().abs().max())
        for a, b in zip(loaded.model.parameters(), before.model.parameters(), strict=True)
    ]
    assert max(moved) > 1e-3
    assert loaded.tokenizer.decode([3, 4, 5]) == "012"


def test_the_written_configuration_gives_the_same_run(finished, runner, tmp_path):
    folder, _ = finished
    again = runner.whole(config.load(folder / "config.toml").model_dump(), tmp_path / "again")
    assert without_times(again.record.folder) == without_times(folder)
    assert (tmp_path / "again/config.toml").read_text() == (folder / "config.toml").read_text()
    one = pq.read_table(folder / "rollouts/step-000003.parquet")
    assert one.equals(pq.read_table(tmp_path / "again/rollouts/step-000003.parquet"))


def test_another_seed_gives_another_run(finished, runner, lab, tmp_path):
    raw = lab.raw(
        evaluation={"every": 2}, training={"save_every": 1, "keep_checkpoints": 2}, seed=1
    )
    other = runner.whole(raw, tmp_path / "other")
    assert without_times(other.record.folder)[1:] != without_times(finished[0])[1:]


def test_a_learning_rate_schedule_is_followed_and_old_rollouts_go(runner, lab, tmp_path):
    own = {"lr": "linear(1e-2, 4e-3)", "steps": 2, "inspect": 1, "keep_rollouts": 1}
    run, started = runner.start(lab.raw(training=own), tmp_path / "run"), []
    run.world.collector.begin = lambda step, state: started.append(step)
    runner.go(run)
    assert started == [1]  # of the first step on
    assert run.world.reference is None  # for which nothing asks
    rates = [line["learning_rate"] for line in lines(tmp_path / "run")]
    assert rates == pytest.approx([1e-2, 7e-3])
    for name in ("rollouts", "tokens"):
        assert [p.name for p in (tmp_path / "run" / name).iterdir()] == ["step-000002.parquet"]


def test_the_reward_rises(runner, lab, tmp_path):
    raw = lab.raw(training={"steps": 12, "lr": 3e-2, "save_every": 0, "rollouts_every": 0})
    raw["algorithm"]["sampling.num_rollouts"] = 8
    runner.whole(raw, tmp_path / "run")
    rewards = [line["reward"] for line in lines(tmp_path / "run")]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    assert not list((tmp_path / "run/rollouts").iterdir())
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-000012"]


def test_an_existing_run_is_not_written_over(finished, lab):
    before = (finished[0] / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match=r"already holds a run.*--resume"):
        Runner().start(lab.raw(), finished[0])
    assert (finished[0] / "metrics.jsonl").read_text() == before


def test_a_run_that_ended_before_its_first_number_is_replaced(lab, tmp_path):
    Runner().start(lab.raw(), tmp_path / "run").close()
    assert (tmp_path / "run/config.toml").exists()
    raw = lab.raw(training={"steps": 3})
    Runner().start(raw, tmp_path / "run").close()
    assert config.load(tmp_path / "run/config.toml").training.steps == 3
    for name in ("rollouts/step-000001.parquet", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text('{"step": 0}\n')  # the validation before step 1
        with pytest.raises(UserError, match="already holds a run"):
            Runner().start(raw, tmp_path / "run")
        (tmp_path / "run" / name).unlink()


def steps_of_two_runs(raw, folder):
    torch.set_num_threads(3)
    step, seen = loop.train_step, []

    def looking(*given):
        seen.append(torch.get_num_threads())
        return step(*given)

    loop.train_step = looking
    runs = [Runner().start({**raw, "threads": n}, folder / str(n)) for n in (1, 2)]
    one, two = (loop.steps(run, Watcher(), None) for run in runs)
    for each in (one, two, one, one):  # the last one ends it
        next(each, None)
    runs[0].close()
    assert torch.get_num_threads() == 3
    next(two)
    runs[1].close()
    assert (torch.get_num_threads(), seen) == (3, [1, 2, 1, 2])
    assert [read_environment(run.record.folder)[0]["threads"] for run in runs] == [1, 2]


def test_each_of_two_open_runs_has_its_own_threads(lab, tmp_path):
    """In a process of its own, as other numbers of threads round other sums of the tests."""
    raw = lab.raw(training={"steps": 2}, evaluation={"every": 0})
    process = forked(steps_of_two_runs, raw, tmp_path)
    process.join(120)
    assert process.exitcode == 0


def test_one_value_stands_for_a_list_of_one():
    made = config.make({"data": {"files": "a.jsonl"}, "evaluation": {"num_samples": 8, "k": 4}})
    assert made.data.files == ("a.jsonl",)
    assert made.evaluation.ks == (4,)
    assert config.make({"evaluation": {"num_samples": 8}}).evaluation.ks == (1, 8)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"stages": {"sampling": 3}}, "stages.sampling = 3: a stage is text"),
        ({"stages": {"sampling": ["a", 3]}}, r"stages.sampling = \['a', 3\]: a stage is text"),
        ({"training": {"lr": [1]}}, r"training.lr = \[1\]: "),
        ({"evaluation": {"k": "x"}}, "evaluation.k.0 = 'x': "),
    ],
)
def test_a_value_of_no_allowed_type_is_said_with_its_setting_alone(raw, said):
    with pytest.raises(UserError, match=f"the options: {said}"):
        config.make(raw)


def test_sizes_and_files_of_the_data(lab, tmp_path):
    def task(**data):
        made = config.make(lab.raw(data=data))
        return load_prompts(made.data, made.reward)

    assert len(task().train) == 10
    assert len(task().validation) == 2
    assert len(task(train_size=4).train) == 4
    other = task(validation_files=[str(lab.data)], validation_size=3)
    assert (len(other.train), len(other.validation)) == (12, 3)
    two = [f"a={lab.data}", f"b={lab.data}"]
    assert task(files=two, train_size=14, validation_size=0).notes == ()
    (note,) = task(files=two, train_size=12, validation_size=0).notes
    assert note.startswith("data.train_size=12 takes the first rows, and none of b: ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"task": "corridor"}, "data.task=corridor beside data.files"),
        ({"task_config": {"size": 3}}, "data.task_config beside data.files"),
        ({"task": "agent:a.py:play", "task_config": {"size": 3}}, "the rows of the files alone"),
        ({"files": [], "task": "countdown", "validation_files": ["v.jsonl"]}, "countdown has vali"),
        ({"files": [], "task": "corridor", "validation_files": ["v.jsonl"]}, "corridor has valida"),
    ],
)
def test_files_that_a_task_does_not_read_are_refused(data, message, lab):
    made = config.make(lab.raw(data=data))
    with pytest.raises(UserError, match=message):
        load_prompts(made.data, made.reward)


@pytest.mark.parametrize(
    ("section", "given", "other"),
    [
        ("model", {"lora_alpha": 8}, {"lora_rank": 2}),
        ("model", {"lora_targets": ["q_proj"]}, {"lora_rank": 2}),
        ("data", {"prompt_column": "question"}, {"files": ["a.jsonl"]}),
        ("reward", {"weights": [2.0]}, {"functions": ["exact_match"]}),
        ("training", {"renew_between_tokens": False}, {"max_staleness": 1}),
        ("training", {"collector_device": "cpu"}, {"max_staleness": 1}),
        ("training", {"best_is": "lowest"}, {"best": "eval/validation/pass@1"}),
        ("roles", {"reset_on_swap": False}, {"swap_every": 1, "play": {0: "one"}}),
        ("roles", {"league_share": 0.9}, {"league_every": 1, "play": {0: "one"}}),
    ],
)
def test_a_setting_that_would_not_be_read_is_refused(section, given, other):
    (name,), (needed, *_) = given, other
    message = rf"{section}\.{name} is not read without {section}\.{needed}"
    with pytest.raises(UserError, match=message):
        config.make({section: given}).build()
    config.make({section: {**given, **other}}).build()
    config.make(config.make({}).model_dump()).build()  # a run's file has all defaults


def test_a_weighted_source_without_training_rows_is_refused_before_step_1(lab, runner, tmp_path):
    data = {"files": [f"a={lab.data}", f"b={lab.data}"], "weights": [1, 1], "train_size": 10}
    with pytest.raises(UserError, match="no training prompt of the source b is left"):
        runner.start(lab.raw(data=data), tmp_path / "run")


def test_runs_of_all_seeds_set_the_same_rows_aside(lab, runner, tmp_path):
    """So a comparison judges all seeds on rows of which none has trained on one."""
    found = []
    for seed in (0, 1):
        raw = lab.raw(data={"heldout_size": 3, "validation_size": 3}, training={"steps": 1})
        runner.start(raw | {"seed": seed}, tmp_path / str(seed))
        found.append(json.loads((tmp_path / str(seed) / "data.json").read_text()))
    assert found[0] == found[1]


def test_lab_is_deterministic(tmp_path):
    one, two = Lab.make(tmp_path / "one"), Lab.make(tmp_path / "two")
    assert (one.model / "model.safetensors").read_bytes() == (
        two.model / "model.safetensors"
    ).read_bytes()
