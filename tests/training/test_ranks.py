"""Runs in several processes: the numbers of one, whatever a method needs from the models."""

import io
import os
import pickle
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import forked
from commands import launch as begin
from fakes.completions_server import serve, worker
from models import Lab, without_times
from ranks_jobs import do, ends, join_and_do, launch, surroundings, wait_for_steps
from safetensors.torch import load_file
from short_runs import make_lab, settings_for
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from strop import __main__ as entrance
from strop.engines.local.engine import LocalEngine
from strop.support.errors import UserError
from strop.training.learner import models
from strop.training.parallel import relaunched, shard_files
from strop.training.parallel.ranks import Ranks
from strop.training.record import checkpoint
from strop.training.record import versions as environment

# Step 1 is as good as any by this metric, so the run ends after step 2.
EARLY = {
    "best": "eval/validation/num_unscored", "best_is": "lowest", "patience": 1,
    "keep_checkpoints": 1,
}  # fmt: skip
# Each recipe needs something else from the models or the engine.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole_update": ("clip_cov", {}),
    "whole_rollout": ("gspo", {"training": {"share_prefixes": "on"}, "evaluation": {"every": 2}}),
    "adapters": (
        "grpo(beta=0.1)",
        {
            "model": {"lora_rank": 2},
            "stages": {"control": "step_back_to_anchor(every=1)"},
            "training": {"conflict_every": 2},
        },
    ),
    "half": ("grpo", {"model": {"dtype": "bfloat16"}, "training": {"lr": 1e-4}}),
    "forks": (
        "spo_tree",
        {"evaluation": {"every": 1}, "training": {"steps": 4, "save_every": 0, **EARLY}},
    ),
    "left_for_later": ("april_partial_rollout", {}),
    "old_weights": ("vcpo", {"engine": {"staleness": 1}}),
    "turns": ("gigpo", {}),
    "teacher": ("vopd", {}),
    "renewed": ("remix(mixed_steps=1, beta=0.1)", {}),  # the reference, which a checkpoint then has
    "renewed_in_shards": (
        "remix(mixed_steps=1, beta=0.1)",
        {"training": {"checkpoint": "sharded"}},
    ),
    "critic_in_shards": ("gae", {"training": {"checkpoint": "sharded"}}),
}
# Here the weights are gathered layer by layer, and elsewhere at once.
BY_LAYERS = ("whole_update", "adapters", "half", "old_weights", "critic_in_shards")
IN_SHARDS = ("critic_in_shards", "renewed_in_shards")
# Runs of two steps that are resumed, by the number of processes: from two to one, from one to two,
# from two to four.
MORE = {1: ("adapters", "renewed", *IN_SHARDS), 2: ("renewed",), 4: ("critic_in_shards",)}
# In one process these make a third step directly; there `renewed` equals `renewed_in_shards`.
UNBROKEN = ("adapters", *IN_SHARDS)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("lab"))


def raw_of(lab: Lab, name: str, steps: int = 2) -> dict[str, Any]:
    """Settings of one of RUNS, or of a recipe."""
    recipe, changes = RUNS.get(name, (name, {}))
    raw = settings_for(lab, recipe)
    raw["training"] = {**raw["training"], "steps": steps, "lr": 1e-3, "save_every": 2}
    for section, values in changes.items():
        raw[section] = {**raw.get(section, {}), **values}
    return raw


def copied(folder: Path, to: Path) -> dict[str, Any]:
    """A job that goes on with a copy of a run of two steps."""
    shutil.copytree(folder, to)
    return {"folder": str(to), "steps": 3}


@pytest.fixture(scope="module")
def folders(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Folders of all runs, by the number of processes that made them or went on with them."""
    found = {count: tmp_path_factory.mktemp(f"ranks-{count}") for count in (1, 2, 4)}
    for name in RUNS:
        raw = raw_of(lab, name, 3 if name in UNBROKEN else 2)
        do({"raw": raw, "folder": str(found[1] / name)}, Ranks())
    for count, before in ((2, 1), (4, 2), (1, 2)):
        jobs = [
            {"raw": raw_of(lab, n), "folder": str(found[2] / n), "layers": n in BY_LAYERS}
            for n in RUNS
        ]
        jobs = jobs if count == 2 else []
        jobs += [copied(found[before] / n, found[count] / f"more-{n}") for n in MORE[count]]
        if count == 1:
            for job in jobs:
                do(job, Ranks())
            continue
        codes, said = launch(count, jobs, found[count])
        assert codes == [0] * count, said
    return found


def differences(one: Path, other: Path, last: int = 0) -> dict[str, float]:
    """Metrics that are not equal, the largest difference first.

    last: the step with which the other run ends, where the one goes on.
    """
    found = {}
    here_all, there_all = without_times(one), without_times(other)
    if last:
        assert there_all[-1]["step"] == last
        here_all = here_all[: len(there_all)]
    for number, (here, there) in enumerate(zip(here_all, there_all, strict=True)):
        assert set(here) == set(there)
        for name, value in here.items():
            if value is None or there[name] is None:
                assert value == there[name]
            else:
                # a cosine has the rounding of a gradient relative to that gradient's own size
                size = 10 if name.startswith("conflict/") else max(1, abs(value))
                found[f"{number}:{name}"] = abs(value - there[name]) / size
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def close(name: str) -> float:
    rounded = name.startswith("half")  # bfloat16 rounds the gradient of each process's rows
    return 2e-2 if rounded else 1e-5


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_give_the_numbers_of_one(folders, name):
    found = differences(folders[1] / name, folders[2] / name, last=2)
    assert max(found.values()) < close(name), found


@pytest.mark.parametrize(("count", "name"), [(c, n) for c, names in MORE.items() for n in names])
def test_a_run_goes_on_with_another_number_of_processes(folders, name, count):
    """From two to one, from one to two, from two to four."""
    unbroken = folders[1] / (name if name in UNBROKEN else f"{name}_in_shards")
    found = differences(unbroken, folders[count] / f"more-{name}")
    assert max(found.values()) < close(name), found
    starts = environment.read_environment(folders[count] / f"more-{name}")
    assert [start["processes"] for start in starts] == [2 if count != 2 else 1, count]


@pytest.mark.parametrize("count", [1, 2])
def test_all_processes_keep_the_best_and_end_early(folders, count):
    folder = folders[count] / "forks"
    assert [line["step"] for line in without_times(folder)] == [0, 1, 2]
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["step-000001", "step-000002"]


@pytest.mark.parametrize(
    ("name", "file"),
    [("whole_rollout", "model.safetensors"), ("adapters", "adapter_model.safetensors")],
)
def test_a_checkpoint_is_whole_and_in_the_usual_layout(folders, name, file):
    one, two = (
        load_file(folders[count] / name / "checkpoints" / "step-000002" / file) for count in (1, 2)
    )
    assert one.keys() == two.keys()
    for weight, value in one.items():
        torch.testing.assert_close(two[weight], value, rtol=1e-4, atol=1e-5)


def test_two_processes_hear_what_a_third_one_collects(lab, tmp_path):
    """Taking turns they give the numbers of one process; ahead, no answer is older than allowed."""
    raw = raw_of(lab, "adapters")
    do({"raw": raw, "folder": str(tmp_path / "one")}, Ranks())
    ahead = raw_of(lab, "grpo", steps=3)
    ahead["training"] |= {"max_staleness": 1, "save_every": 2}
    jobs = [
        {"raw": raw, "folder": str(tmp_path / "turns"), "turns": True},
        {"raw": ahead, "folder": str(tmp_path / "ahead")},
        {"folder": str(tmp_path / "ahead"), "steps": 5},
    ]
    codes, said = launch(2, jobs, tmp_path)
    assert codes == [0, 0], said
    apart = ("asynchronous/", "sampling/oldest_age_steps", "sampling/effective_share")
    for here, there in zip(
        without_times(tmp_path / "one"), without_times(tmp_path / "turns"), strict=True
    ):
        found = {name: value for name, value in there.items() if not name.startswith(apart)}
        cosines = {name: found.pop(name) for name in [*found] if name.startswith("conflict/")}
        assert cosines == pytest.approx({name: here.pop(name) for name in cosines}, abs=1e-4)
        assert found == pytest.approx(here, rel=1e-5, abs=1e-5, nan_ok=True)
    lines = [line for line in without_times(tmp_path / "ahead") if line["step"]]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert max(line["sampling/oldest_age_steps"] for line in lines) <= 1
    assert all(line["asynchronous/restarts"] == 0 for line in lines)


def test_two_processes_train_on_what_an_engine_outside_draws(lab, tmp_path):
    """Which the process that collects talks to."""
    loaded = models.load(str(lab.model), dtype="float32", device="cpu")
    engine = LocalEngine(loaded.model, loaded.tokenizer, num_slots=16)
    with serve(engine, len(loaded.tokenizer), told="drawn") as served:
        served.worker = worker
        raw = raw_of(lab, "grpo", steps=3)
        raw["training"] |= {"max_staleness": 1}
        raw["engine"] = {"kind": "vllm", "url": served.url, "folder": str(tmp_path)}
        job = {"raw": raw, "folder": str(tmp_path / "run")}
        codes, said = launch(2, [job], tmp_path)
        assert codes == [0, 0], said
        assert served.orders.count("strop_load_weights") >= 2
    lines = [line for line in without_times(tmp_path / "run") if line["step"]]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert max(line["sampling/oldest_age_steps"] for line in lines) <= 1


def test_shards_hold_what_a_whole_checkpoint_holds(folders):
    """Each process wrote its part; one goes on with exactly the same numbers."""
    names = ("renewed", "renewed_in_shards")
    whole, shards = (folders[2] / each / "checkpoints" / "step-000002" for each in names)
    assert not (whole / "shards").exists()
    assert (whole / "reference.pt").exists()
    parts = [shards / "shards" / f"__{number}_0.distcp" for number in range(2)]
    sizes = [path.stat().st_size for path in parts]
    assert min(sizes) > 0.3 * sum(sizes)
    inside = (whole / "trainer.pt").stat().st_size
    assert (shards / "trainer.pt").stat().st_size < 0.5 * inside
    one, other = (without_times(folders[1] / f"more-{each}") for each in names)
    assert one == other


def test_what_is_no_table_of_tensors_is_not_unpickled(folders, tmp_path):
    place = tmp_path / "step-000002"
    shutil.copytree(folders[2] / "critic_in_shards" / "checkpoints" / "step-000002", place)
    assert len(checkpoint.read(place)["optimiser"]["state"]) > 0
    (place / "shards" / ".metadata").write_bytes(pickle.dumps(Path.unlink))
    with pytest.raises(UserError, match=r"trainer.pt: .*unlink does not belong there"):
        checkpoint.read(place)


class Of:
    """Pickled as the first releases of Python 3.11 pickle a member of an enumeration."""

    def __init__(self, kind, name):
        self.given = kind, name

    def __reduce__(self):
        return getattr, self.given


def test_a_table_of_tensors_names_members_of_enumerations_and_no_other_attributes():
    layout = "TORCH_CONTIGUOUS_FORMAT"
    table = io.BytesIO(pickle.dumps(Of(_MEM_FORMAT_ENCODING, layout)))
    assert shard_files._Table(table).load() is _MEM_FORMAT_ENCODING[layout]
    with pytest.raises(pickle.UnpicklingError, match=r"mro of .*Metadata.* does not belong there"):
        shard_files._Table(io.BytesIO(pickle.dumps(Of(Metadata, "mro")))).load()


def test_a_process_without_room_for_its_part_ends_all(lab, tmp_path):
    """The second meets a full disk; no half of a checkpoint stays, the one before does."""
    folder = tmp_path / "run"
    raw = raw_of(lab, "critic_in_shards")
    raw["training"] |= {"save_every": 1}
    codes, text = launch(2, [{"raw": raw, "folder": str(folder), "full": [1, 2]}], tmp_path)
    assert all(codes)
    (said,) = [line for line in text.splitlines() if line.startswith("said:")]
    assert re.search(r"the checkpoint of step 2 could not .* no room, .* are needed", said)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]
    do({"folder": str(folder), "steps": 2}, Ranks())
    whole = tmp_path / "whole"
    do({"raw": raw, "folder": str(whole)}, Ranks())
    assert max(differences(whole, folder).values()) < 1e-5


def test_a_process_that_is_killed_ends_all_and_the_run_goes_on(lab, tmp_path):
    """What was done since the newest checkpoint is lost, and nothing else.

    Now and then gloo waits on for the other one, until its signs of life are missed.
    """
    number = 0
    folder, output = tmp_path / "run", tmp_path / "said"
    raw = raw_of(lab, "critic_in_shards", 500)
    raw["training"] |= {"save_every": 1, "process_timeout_seconds": 20}
    lines = folder / "metrics.jsonl"
    with surroundings(2) as places:
        jobs = [{"raw": raw, "folder": str(folder)}]
        processes = [forked(join_and_do, each, jobs, output) for each in places]
        wait_for_steps(lines, processes, output)
        processes[number].kill()
        assert all(ends(processes))
    gone, silent = f"process {1 - number} of 2 has lost another one", f"process {number} of 2 ("
    assert f"said: {gone}" in output.read_text() or f"stopped: {silent}" in output.read_text()
    assert f". Resume with: strop train --resume {folder}\n" in output.read_text()
    done = len(lines.read_text().splitlines())
    assert checkpoint.step_of(checkpoint.newest(folder / "checkpoints")) >= done - 1
    do({"folder": str(folder), "steps": done + 1}, Ranks())
    raw["training"]["steps"] = done + 1
    do({"raw": raw, "folder": str(tmp_path / "whole")}, Ranks())
    assert max(differences(tmp_path / "whole", folder).values()) < 1e-5


def test_one_server_is_asked_by_the_first_process_and_heard_by_all(lab, tmp_path):
    """Two processes have the rollouts of one, and hand over the weights that they train."""
    found = {}
    for count in (1, 2):
        loaded = models.load(str(lab.model))
        engine = LocalEngine(
            loaded.model, loaded.tokenizer, num_slots=8, context_length=loaded.context
        )
        folder = tmp_path / str(count)
        folder.mkdir()
        with serve(engine, len(loaded.tokenizer), told="drawn", worker=worker) as served:
            raw = raw_of(lab, "grpo")
            raw["engine"] = {"kind": "vllm", "url": served.url, "folder": str(folder)}
            job = {"raw": raw, "folder": str(folder / "run")}
            if count == 1:
                do(job, Ranks())
            else:
                codes, text = launch(count, [job], tmp_path)
                assert not any(codes), text
        found[count] = folder / "run"
        assert served.orders.count("strop_load_weights") == 3  # at the start, after two steps
        assert [path.name for path in folder.iterdir()] == ["run"]
    assert max(differences(found[1], found[2]).values()) < 1e-5
    lines = [line for line in without_times(found[2]) if line["step"]]
    gaps = [line["sampling/sampling_logp_difference/mean"] for line in lines]
    assert len(gaps) == 2
    assert max(gaps) < 1e-5


def test_one_line_says_which_process_failed(lab, tmp_path):
    raw = raw_of(lab, "grpo")
    job = {"raw": raw, "folder": str(tmp_path / "run"), "breaks": 1}
    codes, text = launch(2, [job], tmp_path)
    assert all(codes)
    said = [line for line in text.splitlines() if line.startswith("said:")]
    assert said == ["said: process 1 of 2: its memory is full"]


def words_of(lab: Lab, folder: Path) -> list[str]:
    words = ["train", *lab.arguments("--out", str(folder))]
    return [word.replace(":digits", ":even") for word in words]


def test_a_mistake_is_said_once(lab, tmp_path):
    folder, output = tmp_path / "run", tmp_path / "output"
    words = [*words_of(lab, folder), "training.lr=-1"]
    with surroundings(2) as places:
        assert ends([begin(words, output, environment=each) for each in places]) == [2, 2]
    assert output.read_text().count("error:") == 1
    assert not folder.exists()


def test_processes_that_are_started_again_go_on_with_their_own_run(lab, tmp_path, monkeypatch):
    """As torchrun --max-restarts does when one was killed; another command's run is none of it."""
    folder, output = tmp_path / "run", tmp_path / "output"
    words = [*words_of(lab, folder), "training.steps=4", "training.process_timeout_seconds=20"]
    with surroundings(2) as places:
        processes = [begin(words, output, environment=each) for each in places]
        end = time.monotonic() + 300
        while not (folder / "checkpoints" / "step-000001").exists():
            assert all(process.is_alive() for process in processes), output.read_text()
            assert time.monotonic() < end
            time.sleep(0.01)
        processes[1].kill()
        assert all(ends(processes))
        again = [each | {"TORCHELASTIC_RESTART_COUNT": "1"} for each in places]
        codes = ends([begin(words, output, environment=each) for each in again])
        assert codes == [0, 0], output.read_text()
        monkeypatch.setattr(os, "environ", {**os.environ, **again[0]})
        for argv, found in ((words, folder), ([*words, "seed=1"], None)):
            monkeypatch.setattr(sys, "argv", ["strop", *argv])
            assert relaunched.previous_run() == found
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
        assert relaunched.previous_run() is None
    assert f"started again: {folder} resumes" in output.read_text()
    assert [line["step"] for line in without_times(folder)] == [1, 2, 3, 4]
    first, second = environment.read_environment(folder)
    assert first["after_step"] == 0 < second["after_step"]


def torchrun(words: list[str], output: Path) -> None:
    """The command, whose processes are copies of this one: torch is imported once."""
    from torch.distributed.run import main

    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    main(["--standalone", "--nproc-per-node", "2", "--run-path", "--start-method", "fork", *words])


def test_an_interrupted_run_is_saved(lab, tmp_path):
    """Of processes that torchrun has started, and interrupts."""
    folder = tmp_path / "run"
    words = [entrance.__file__, *words_of(lab, folder)]
    steps = ["training.steps=5000", "training.save_every=0"]
    process = forked(torchrun, [*words, *steps], tmp_path / "output")
    end = time.monotonic() + 300
    log = folder / "metrics.jsonl"
    while not (log.exists() and log.stat().st_size):  # until a step is done
        assert process.is_alive(), (tmp_path / "output").read_text()
        assert time.monotonic() < end
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGTERM)
    process.join(120)
    done_steps = len((folder / "metrics.jsonl").read_text().splitlines())
    (saved,) = (folder / "checkpoints").glob("step-*")
    assert saved.name == f"step-{done_steps:06d}"
    assert done_steps < 5000
