"""Rollouts of old weights: their versions, their cost, and an exact resume of a broken run."""

import pyarrow.parquet as pq
import pytest
import torch
from models import without_times
from runs import Runner

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local import settings as open_local
from strop.engines.local.engine import LocalEngine
from strop.engines.local.stale_weights import StaleWeightsEngine
from strop.evaluation.run import validator
from strop.support.errors import UserError
from strop.training import loop
from strop.training.learner import models
from strop.training.record import checkpoint
from strop.training.step import train_step

STEPS = 5


def stale(lab, staleness, steps=STEPS, **more):
    training = {"steps": steps, "save_every": 1, "keep_checkpoints": 10}
    return lab.raw(
        "grpo", reward="even", training=training, engine={"staleness": staleness}, **more
    )


def drawn(engine):
    """What an engine draws for one prompt, with its log-probabilities."""
    request = Request((3, 4, 5), 12, seed=7)
    (answer,) = asynchronous(engine).sample([request])
    return [(event.ids, event.logp) for event in answer.events]


def test_answers_are_those_of_the_weights_of_so_many_steps_before(lab, runner, tmp_path):
    """Step s draws with the weights of step max(0, s - 1 - staleness), as saved then."""
    run = runner.start(stale(lab, 2), tmp_path / "run")
    run.save()
    state, probed = {}, {}
    for step in range(1, STEPS + 1):
        probed[step] = drawn(run.world.engine)
        stepped = train_step(run.world, run.algorithm, state, step)
        version_T = stepped.batch["version_T"][stepped.batch["mask_T"]]
        assert version_T.unique().tolist() == [max(0, step - 3)]
        assert stepped.metrics["sampling/age_steps"] == min(step - 1, 2)
        run.state, run.done = stepped.state, step
        run.save()
    for step, found in probed.items():
        place = run.checkpoints / f"step-{max(0, step - 3):06d}"
        saved = models.load(str(place))
        assert found == drawn(LocalEngine(saved.model, saved.tokenizer)), step
    assert probed[5] != probed[1]


def test_no_staleness_is_the_engine_of_the_trainers_weights(lab, runner, tmp_path):
    run = runner.whole(stale(lab, 0), tmp_path / "run")
    assert type(run.world.engine) is LocalEngine
    assert all(line["sampling/age_steps"] == 0 for line in without_times(tmp_path / "run"))
    assert not list(tmp_path.rglob("engine.pt"))


def test_the_first_steps_are_those_of_a_run_that_is_one_behind(lab, runner, tmp_path):
    """At step 1 there is nothing older; from step 2 on the answers differ."""
    for staleness in (0, 1, 2):
        runner.whole(stale(lab, staleness, 3), tmp_path / str(staleness))
    fresh, one, two = (without_times(tmp_path / str(n)) for n in (0, 1, 2))
    assert one[0] == fresh[0]
    assert one[:2] == two[:2]
    assert one[1] != fresh[1]
    assert one[2] != two[2]


def test_validation_is_of_the_newest_weights(lab, runner, tmp_path):
    """Its scores do not depend on what the engine would sample with."""
    run = runner.start(stale(lab, 3), tmp_path / "run")
    state = {}
    for step in (1, 2):
        state = train_step(run.world, run.algorithm, state, step).state
    run.done, run.config.evaluation.every = 2, 1
    evaluate = validator(4, (1, 4), 0)
    before = drawn(run.world.engine)
    found = loop._evaluated(run, evaluate, {})
    assert drawn(run.world.engine) == before
    run.world.engine = LocalEngine(run.loaded.model, run.loaded.tokenizer)
    plain = loop._evaluated(run, evaluate, {})
    del found["timing_s/eval"], plain["timing_s/eval"]
    assert found == plain
    assert drawn(run.world.engine) != before


@pytest.fixture(scope="module")
def whole(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    Runner().whole(stale(lab, 2), folder)
    return folder


@pytest.mark.parametrize("broken_after", [1, 4])
def test_a_broken_run_goes_on_exactly(broken_after, lab, whole, runner, tmp_path):
    """Also where it broke while the age was still growing."""
    folder = tmp_path / "run"
    run = runner.start(stale(lab, 2), folder)
    runner.go(run, lambda run: setattr(run, "stop_asked", run.done == broken_after))
    assert run.done == broken_after
    resumed = runner.resume(folder)
    assert resumed.world.engine.version == max(0, broken_after - 2)
    runner.go(resumed)
    assert without_times(folder) == without_times(whole)
    for path in sorted((whole / "rollouts").iterdir()):
        assert pq.read_table(folder / "rollouts" / path.name).equals(pq.read_table(path)), path
    one, two = (checkpoint.newest(p / "checkpoints") / "model.safetensors" for p in (folder, whole))
    assert one.read_bytes() == two.read_bytes()


def test_weights_held_for_another_staleness_are_refused(lab, runner, tmp_path):
    run = runner.start(stale(lab, 2), tmp_path / "run")
    runner.go(run, lambda run: setattr(run, "stop_asked", run.done == 3))
    with pytest.raises(UserError, match=r"engine.staleness=2, the run has 1"):
        runner.resume(tmp_path / "run", engine={"staleness": 1})


def test_a_run_too_short_to_see_that_age_is_refused(lab, runner, tmp_path):
    with pytest.raises(UserError, match=r"engine.staleness is 5, but the run has only 5 steps"):
        runner.start(stale(lab, 5), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_that_do_not_fit_into_memory_are_refused(lab, runner, tmp_path, monkeypatch):
    monkeypatch.setattr(open_local, "free_memory", lambda: 100_000)
    with pytest.raises(UserError, match=r"holds the weights of 3 steps.*model.lora_rank"):
        runner.start(stale(lab, 2), tmp_path / "run")


def test_free_memory_is_less_than_all_of_it():
    import os

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < open_local.free_memory() < total


def test_weights_that_are_not_trained_are_shared_and_adapters_lag(lab, runner, tmp_path):
    """With adapters only these are held, and the frozen model has no second copy."""
    raw = stale(lab, 1)
    raw["model"]["lora_rank"] = 2
    run = runner.start(raw, tmp_path / "run")
    engine = run.world.engine
    assert isinstance(engine, StaleWeightsEngine)
    (_, held), *_ = engine.held
    assert held
    assert all("lora" in name for name in held)
    ours = dict(run.loaded.model.named_parameters())
    for name, weight in engine.model.model.named_parameters():
        assert (weight.data_ptr() == ours[name].data_ptr()) == (name not in held), name
    runner.go(run)
    assert engine.version == STEPS - 1
    newest = {name: weight for name, weight in ours.items() if name in held}
    assert all(torch.equal(engine.held[-1][1][name], newest[name]) for name in held)
    assert any(not torch.equal(engine.held[0][1][name], newest[name]) for name in held)


def test_given_weights_must_be_whole(lab):
    loaded = models.load(str(lab.model))
    engine = StaleWeightsEngine(loaded.model, loaded.tokenizer, staleness=1)
    state = loaded.model.state_dict()
    del state["model.norm.weight"]
    with pytest.raises(UserError, match=r"lack model.norm.weight"):
        engine.load_weights(state, 1)


AGED = "answers are up to 2 steps old, and the method treats them as the policy's own"


@pytest.mark.parametrize(
    ("recipe", "where", "noted"),
    [
        ("grpo", {"engine": {"staleness": 2}}, True),
        ("grpo", {"training": {"steps": STEPS, "max_staleness": 2}}, True),
        ("grpo", {}, False),
        ("areal_decoupled_ppo", {"engine": {"staleness": 2}}, False),
    ],
)
def test_a_method_that_corrects_no_age_is_noted(lab, runner, tmp_path, recipe, where, noted):
    raw = lab.raw(recipe, reward="even", **({"training": {"steps": STEPS}} | where))
    notes = runner.start(raw, tmp_path / "run").world.services.notes
    assert any(note.startswith(AGED) for note in notes) == noted
