"""A run that was interrupted anywhere resumes as if it had not been."""

import random
import shutil

import pyarrow.parquet as pq
import pytest
import torch
from models import save_model, without_times
from runs import Runner

from strop.support.errors import UserError
from strop.training import loop
from strop.training.record import checkpoint, run_folder
from strop.training.settings import config

# One draws in rounds and keeps its draws, one changes an option by its observations.
RECIPES = ("dapo(max_rounds=3)", "adaptive_entropy_coef(target=3.1)")
STEPS = 5


class Broken(Exception):
    """Stands for a machine that goes down."""


def short(lab, recipe="grpo", **training):
    raw = lab.raw(recipe, reward="even", training={"steps": STEPS, "save_every": 2, **training})
    raw["evaluation"] = {"every": 3, "num_samples": 2}
    if recipe == "grpo":  # several updates a step, so that the optimiser's state matters more
        raw["algorithm"]["plan.num_minibatches"] = 2
    return raw


@pytest.fixture(scope="module")
def unbroken(lab, tmp_path_factory):
    """The run of a recipe that nothing broke, once for all tests."""
    folders = {}

    def folder_of(recipe):
        if recipe not in folders:
            folders[recipe] = tmp_path_factory.mktemp("unbroken") / "run"
            Runner().whole(short(lab, recipe), folders[recipe])
        return folders[recipe]

    return folder_of


def same(folder, other):
    assert without_times(folder) == without_times(other)
    assert [line["step"] for line in without_times(folder)] == list(range(STEPS + 1))
    for path in sorted((other / "rollouts").iterdir()):
        assert pq.read_table(folder / "rollouts" / path.name).equals(pq.read_table(path)), path
    names = {path.name for path in (other / "rollouts").iterdir()}
    assert {path.name for path in (folder / "rollouts").iterdir()} == names
    one = checkpoint.newest(folder / "checkpoints") / "model.safetensors"
    two = checkpoint.newest(other / "checkpoints") / "model.safetensors"
    assert one.read_bytes() == two.read_bytes()


def go_until(runner, run, monkeypatch, target, name, count):
    """Go on with a run until the `count`-th call of a function, which raises at once."""
    real, calls = getattr(target, name), []

    def breaking(*arguments, **named):
        calls.append(1)
        if len(calls) == count:
            raise Broken
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, breaking)
        with pytest.raises(Broken):
            runner.go(run)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_that_breaks_off_twice_goes_on_exactly(
    recipe, lab, unbroken, runner, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    at = random.Random(recipe).sample(range(1, STEPS + 1), 2)
    run = runner.start(short(lab, recipe), folder)
    for count in at:
        go_until(runner, run, monkeypatch, loop, "train_step", min(count, STEPS - run.done))
        run = runner.resume(folder)
    runner.go(run)
    same(folder, unbroken(recipe))


def test_a_run_may_break_off_anywhere(lab, unbroken, runner, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run = runner.start(short(lab), folder)
    for target, name, count in (
        (loop, "_evaluated", 1),  # nothing at all was written
        (run_folder.Record, "metrics", 3),  # after the rollouts were written, before the line
        (checkpoint, "save", 1),  # after the line, before the first checkpoint
        (checkpoint.torch, "save", 2),  # a checkpoint half written
        (checkpoint.shutil, "rmtree", 3),
    ):
        go_until(runner, run, monkeypatch, target, name, count)
        run = runner.resume(folder)
    runner.go(run)
    same(folder, unbroken("grpo"))


@pytest.fixture(scope="module")
def once_cut(lab, tmp_path_factory):
    folder, runner = tmp_path_factory.mktemp("cut") / "run", Runner()
    with pytest.MonkeyPatch.context() as patch:
        go_until(runner, runner.start(short(lab), folder), patch, loop, "train_step", 4)
    assert [line["step"] for line in without_times(folder)] == [0, 1, 2, 3]
    return folder


@pytest.fixture
def cut(once_cut, tmp_path):
    """A copy of a run that broke off in step 4; its newest checkpoint is of step 2."""
    return shutil.copytree(once_cut, tmp_path / "run")


def test_what_a_kill_leaves_behind_is_cleared_away(cut, unbroken, runner):
    half = cut / "checkpoints/.step-000004"
    shutil.copytree(cut / "checkpoints/step-000002", half)
    (half / "trainer.pt").unlink()
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 0.1')
    for name in ("step-000004.parquet", "step-000999.parquet", "step-000004.unfinished"):
        (cut / "rollouts" / name).write_bytes(b"PAR1")
    (cut / ".metrics.jsonl.unfinished").write_text("{")
    runner.go(runner.resume(cut))
    same(cut, unbroken("grpo"))
    assert not list((cut / "checkpoints").glob(".*"))


def test_going_back_to_an_earlier_step_may_break_off(unbroken, runner, tmp_path, monkeypatch):
    """Whichever of its files are discarded last: a checkpoint never stays without its lines."""
    folder = shutil.copytree(unbroken("grpo"), tmp_path / "run")
    discarded = []

    def breaking(real):
        def discard(*given):
            discarded.append(real)
            if len(discarded) == 2:
                raise Broken
            real(*given)

        return discard

    with monkeypatch.context() as patch:
        for target, name in ((checkpoint, "forget_after"), (run_folder.Record, "cut_after")):
            patch.setattr(target, name, breaking(getattr(target, name)))
        with pytest.raises(Broken):
            loop.resume(config.load(folder / "config.toml"), folder, 2)
    runner.go(runner.resume(folder))
    same(folder, unbroken("grpo"))


def test_a_file_of_the_user_beside_the_rollouts_stays(cut, runner):
    mine = cut / "rollouts/notes-about-it.parquet"
    mine.write_bytes(b"mine")
    runner.resume(cut)
    assert mine.read_bytes() == b"mine"


def test_going_on_with_a_finished_run_changes_nothing(unbroken, runner):
    folder = unbroken("grpo")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run = runner.resume(folder)
    assert run.finished
    runner.go(run)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert before == after


def test_a_finished_run_takes_more_steps(lab, unbroken, runner, tmp_path):
    folder = tmp_path / "run"
    runner.whole(short(lab, steps=2), folder)
    run = runner.resume(folder, training={"steps": STEPS})
    assert f"steps = {STEPS}\n" in (folder / "config.toml").read_text()
    runner.go(run)
    longer, whole = without_times(folder), without_times(unbroken("grpo"))
    assert "eval/validation/pass@1" in longer[2]  # it was the last step once
    longer[2] = {k: v for k, v in longer[2].items() if not k.startswith("eval/")}
    assert longer == whole


def test_fewer_steps_than_are_done_are_refused(cut, runner):
    before = (cut / "config.toml").read_text()
    with pytest.raises(UserError, match=r"has done 2 steps, training.steps is 1"):
        runner.resume(cut, training={"steps": 1})
    assert (cut / "config.toml").read_text() == before
    assert len(without_times(cut)) == 4


def test_a_checkpoint_of_another_architecture_is_refused(cut, runner, tmp_path):
    other = save_model(tmp_path / "other", hidden=16)
    (cut / "checkpoints/step-000002/files.json").unlink()  # its sums would show the change
    shutil.copy(other / "config.json", cut / "checkpoints/step-000002/config.json")
    with pytest.raises(UserError, match="hidden_size 16, the model has 32"):
        runner.resume(cut)
    (cut / "checkpoints/step-000002/config.json").write_text("{")
    with pytest.raises(UserError, match=r"no readable config\.json"):
        runner.resume(cut)


def test_a_damaged_checkpoint_is_named(cut, runner):
    place = cut / "checkpoints/step-000002/trainer.pt"
    place.write_bytes(place.read_bytes()[:100])
    with pytest.raises(UserError, match="step-000002 cannot be read"):
        runner.resume(cut)


def test_other_data_is_refused(lab, runner, tmp_path):
    data, folder = tmp_path / "own.jsonl", tmp_path / "run"
    data.write_text(lab.data.read_text())
    raw = lab.raw(data={"files": [str(data)]})
    runner.go(runner.start(raw, folder), lambda run: setattr(run, "stop_asked", True))
    lines = data.read_text().splitlines()
    others = [
        [lines[1], lines[0], *lines[2:]],
        [*lines[:-1], lines[-1].replace("1", "2")],
        [line.replace("answer", "reply") for line in lines],
        lines[:-1],
    ]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for other in others:
        data.write_text("\n".join(other))
        with pytest.raises(UserError, match=r"data is not what .* was started with: \d+ rows now"):
            runner.resume(folder)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    data.write_text("\n".join(lines) + "\n")
    runner.go(runner.resume(folder))
    assert [line["step"] for line in without_times(folder)] == [1, 2, 3]


def test_a_run_that_left_out_rows_may_validate_once_it_has_resumed(lab, runner, tmp_path):
    """The rows that it is compared by are the same."""
    rows, path = [f"{n}+1=" for n in range(4)] + ["1+" * 40], tmp_path / "rows.jsonl"
    path.write_text("\n".join(f'{{"prompt": "{each}", "answer": "1"}}' for each in rows))
    files = {name: [str(path)] for name in ("files", "validation_files")}
    data = {**files, "validation_size": 0, "overlong": "drop"}
    raw = lab.raw(data=data, evaluation={"every": 0})
    runner.go(runner.start(raw, tmp_path / "run"), lambda run: setattr(run, "stop_asked", True))
    validating = {"every": 1, "num_samples": 2}
    run = runner.resume(tmp_path / "run", evaluation=validating)
    assert len(run.world.services.task.validation) == 4


def test_deterministic_operators_are_those_of_a_cpu_anyway(
    lab, unbroken, runner, tmp_path, monkeypatch
):
    """And they are asked for in every step; what a GPU makes of that benchmarks/gpu/equal_runs.py
    looks at.
    """
    before = torch.utils.deterministic.fill_uninitialized_memory
    seen, step = [], loop.train_step

    def looking(*given):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return step(*given)

    monkeypatch.setattr(loop, "train_step", looking)
    runner.whole(short(lab, full_determinism=True), tmp_path / "run")
    assert seen == [True] * len(seen) != []
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == before
    same(tmp_path / "run", unbroken("grpo"))
