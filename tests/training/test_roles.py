"""Roles with adapters of their own: what each learns from, and an equal reference."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from models import without_times
from runs import Runner
from safetensors.torch import load_file

import strop
from strop.support import adapted
from strop.support.errors import UserError
from strop.training import loading, loop, setup
from strop.training.learner import adapters, models
from strop.training.learner.step_models import refresh
from strop.training.record import checkpoint
from strop.training.settings import config

OWN = str(Path(__file__).with_name("side_by_side.py"))
STEPS = 3
QUIET = {"every": 0}  # no validation
TWO = {"play": {"0": "first", "1": "second"}}


def raw(task="SideBySide", recipe="gae", roles=TWO, **sections):
    base = {
        "recipe": recipe, "model": {"name": "tiny", "lora_rank": 2}, "roles": roles,
        "data": {"task": f"{OWN}:{task}", "train_size": 6},
        "training": {
            "steps": STEPS, "lr": 5e-3, "save_every": 0, "rollouts_every": 1, "inspect": 0
        },
        "algorithm": {"sampling.num_prompts": 3, "sampling.num_rollouts": 4},
        "evaluation": QUIET,
    }  # fmt: skip
    return {**base, **{k: {**base.get(k, {}), **v} for k, v in sections.items()}}


def weights_in(folder, name=""):
    place = checkpoint.newest(folder / "checkpoints") / name
    found = load_file(place / adapters.WEIGHTS)
    assert any(bool(weight.any()) for key, weight in found.items() if "lora_B" in key)
    return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folders of runs that several tests look at."""
    folders = {}
    plans = {"both": raw(), **{
        str(number): raw(roles={}, data={"task_config": {"only": number}}) for number in (0, 1)
    }}  # fmt: skip

    def folder_of(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("roles") / name
            Runner().whole(plans[name], folders[name])
        return folders[name]

    return folder_of


def test_roles_that_share_an_adapter_make_the_run_of_one_policy_bit_for_bit(runner, tmp_path):
    scored = {"every": 2, "num_samples": 2, "max_prompts": 2}
    for name, roles in (("one", {}), ("shared", {"play": {"0": "both", "1": "both"}})):
        plain = raw(recipe="gae", roles=roles, evaluation=scored, training={"steps": 2})
        runner.whole(plain, tmp_path / name)
    assert same(weights_in(tmp_path / "one"), weights_in(tmp_path / "shared", "both"))
    shared = [
        {name: value for name, value in line.items() if not name.startswith("adapters/")}
        for line in without_times(tmp_path / "shared")
    ]
    assert shared == without_times(tmp_path / "one")


def test_roles_that_never_meet_make_the_runs_of_each_alone_bit_for_bit(finished):
    """Also with a critic each, and advantages whitened over the step: the recipe has both."""
    both = finished("both")
    for number, name in enumerate(("first", "second")):
        assert same(weights_in(finished(str(number))), weights_in(both, name))
    assert not same(weights_in(both, "first"), weights_in(both, "second"))
    last = without_times(both)[-1]
    rates = [last[f"adapters/{name}/grad_norm"] for name in ("first", "second")]
    assert last["grad_norm"] == pytest.approx(sum(rates) / 2)


def test_a_run_of_two_adapters_goes_on_exactly_and_its_table_names_them(runner, finished, tmp_path):
    folder, whole = tmp_path / "run", finished("both")
    runner.whole(raw(training={"steps": 2}), folder)
    runner.go(runner.resume(folder, training={"steps": STEPS}))
    for name in ("first", "second"):
        assert same(weights_in(folder, name), weights_in(whole, name))
    assert without_times(folder) == without_times(whole)
    rows = pq.read_table(folder / f"rollouts/step-{STEPS:06d}.parquet").to_pylist()
    assert {(row["player"], row["adapter"]) for row in rows} == {(0, "first"), (1, "second")}


def world_of(plain):
    settings = config.make(plain)
    algorithm = settings.build()
    task = setup.load_prompts(settings.data, settings.reward)
    loaded = loading.load_model(settings)
    rng = torch.Generator().manual_seed(3)
    for name in loaded.names:
        for weight in adapted.weights_of(loaded.model, name):
            with torch.no_grad():
                weight.add_(torch.randn(weight.shape, generator=rng) / 8)
    world = setup.make_world(settings, algorithm, loaded, task)
    return algorithm, world, loaded


def drawn(algorithm, world):
    from fakes.services import rolled_out

    from strop.method.part import Draw

    draws = tuple(Draw(uid, 4) for uid in world.pool[:3])
    rng = torch.Generator().manual_seed(5)
    return rolled_out(algorithm.rollout.part, draws, world.engine, world.services, rng).batch


@pytest.mark.parametrize("task", ["SideBySide", "Relay"])
def test_engine_and_trainer_agree_on_every_token_of_every_adapter(task):
    algorithm, world, _ = world_of(raw(task))
    batch = drawn(algorithm, world)
    models = world.act(algorithm)
    now = refresh(batch, ("logp_old_T",), models)
    gap_T = (now["logp_old_T"] - batch["logp_sampler_T"]).abs()
    assert gap_T[batch["mask_T"]].max() < 1e-4
    assert torch.equal(batch["adapter_T"], batch["role_K"][batch["turn_T"]])
    assert sorted(batch["adapter_T"].unique().tolist()) == [0, 1]
    # under the other one's weights the same tokens have other chances
    swapped = batch.set(adapter_T=1 - batch["adapter_T"])
    other = refresh(swapped, ("logp_old_T",), models)
    assert (other["logp_old_T"] - now["logp_old_T"])[batch["mask_T"]].abs().max() > 1e-2


@pytest.mark.parametrize("task", ["SideBySide", "Relay"])
def test_the_turns_of_one_role_give_the_other_ones_adapter_no_gradient(task):
    algorithm, world, loaded = world_of(raw(task))
    batch = drawn(algorithm, world)
    policy = world.policy
    adjoints = lambda rows, columns: {"logp_T": torch.ones_like(columns["logp_T"])}  # noqa: E731
    seen = torch.zeros(batch.size("T"), dtype=torch.long)
    for number, (name, own, place_T) in enumerate(policy.shares(batch)):
        with policy.under(name):
            policy.push(own, ("logp_T",), adjoints, False, 1.0)
        for other in loaded.names:
            moved = [w.grad is not None for w in adapted.weights_of(loaded.model, other)]
            assert all(moved) if other == name else not any(moved)
        for weight in adapted.weights_of(loaded.model, name):
            weight.grad = None
        assert bool((own["adapter_T"][own["mask_T"]] == number).all())
        seen[place_T] += own["mask_T"].long()
    assert torch.equal(seen > 0, batch["mask_T"])
    assert int(seen.max()) == 1  # every token teaches one adapter


def test_agents_of_one_rollout_each_train_their_own_adapter_and_by_turns(runner, tmp_path):
    recipe = "marft(interval=1, num_epochs=2, max_kl=0)"
    run = runner.start(raw("Relay", recipe, training={"steps": 2}), tmp_path / "run")
    now = {}

    def look(run):
        for name in run.loaded.names:
            weights = adapted.weights_of(run.loaded.model, name)
            now[run.done, name] = [weight.detach().clone() for weight in weights]

    look(run)
    runner.go(run, look)
    moved = {
        (step, name): any(
            not torch.equal(before, after)
            for before, after in zip(now[step - 1, name], now[step, name], strict=True)
        )
        for step in (1, 2)
        for name in ("first", "second")
    }
    assert moved == {
        (1, "first"): True, (1, "second"): False, (2, "first"): False, (2, "second"): True,
    }  # fmt: skip


def test_a_player_that_is_not_trained_is_context(runner, finished, tmp_path):
    folder = checkpoint.newest(finished("both") / "checkpoints") / "second"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    place = tmp_path / "run"
    run = runner.whole(raw(roles={"play": {"0": "first", "1": str(folder)}}), place)
    rows = pq.read_table(place / f"rollouts/step-{STEPS:06d}.parquet").to_pylist()
    assert {(row["player"], row["adapter"], row["opponent"]) for row in rows} == {
        (0, "first", "opponent_1")
    }
    told = [json.loads(row["opponents"]) for row in rows]
    assert all(one["turns"][0]["action"] for (one,) in told)
    last = without_times(place)[-1]
    assert last["rollout/tokens_of_opponents"] > 0
    assert "rollout/tokens_thrown_away" not in last
    assert "episode/reward_role_1" not in last
    saved = {path.name for path in checkpoint.newest(run.checkpoints).iterdir()}
    assert "first" in saved
    assert "opponent_1" not in saved
    # the learner is what it is alone, for the other one cannot touch it here
    assert same(weights_in(place, "first"), weights_in(finished("0")))
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_base_plays_a_role_as_the_model_without_an_adapter():
    algorithm, world, _ = world_of(raw(roles={"play": {"0": "first", "1": "base"}}))
    batch = drawn(algorithm, world)
    assert batch["player_B"].eq(0).all()
    others = world.services.log.logged["opponents"]
    assert {one["adapter"] for (one,) in others.values()} == {"base"}
    # it draws as a policy does that has no adapter
    plain = raw(roles={}, model={"name": "tiny", "lora_rank": 0})
    _, bare, _ = world_of(plain)
    drawn(algorithm, bare)
    said = bare.services.log.logged
    alone = {said["episode"][uid]: [turn["action"] for turn in turns]
             for uid, turns in said["turns"].items() if said["player"][uid] == 1}  # fmt: skip
    episodes = world.services.log.logged["episode"]
    assert {episodes[uid]: [turn["action"] for turn in one["turns"]]
            for uid, (one,) in others.items()} == alone  # fmt: skip


def test_a_checkpoint_is_played_on_sampled_and_exported(finished, tmp_path):
    folder = finished("both")
    place = checkpoint.newest(folder / "checkpoints")
    asked = {"k": 1, "samples": 2, "prompts": 2, "split": "train", "trust_files": True}
    as_trained = strop.evaluate(folder, **asked)
    told = {name: as_trained[name] for name in ("mean@2", "completions/mean_length")}
    played = {0: "first", 1: str(place / "second")}
    one = strop.evaluate(folder, **asked, roles_play=played)
    other = strop.evaluate(folder, **asked, roles_play={0: str(place / "first"), 1: "second"})
    for name, value in told.items():  # the same game, and each scores its own seat
        assert value == pytest.approx((one[name] + other[name]) / 2)
    with pytest.raises(UserError, match="has no adapter 'third'"):
        strop.evaluate(folder, **asked, roles_play={0: "first", 1: "third"})
    with pytest.raises(UserError, match="give the folder of first or second in a checkpoint"):
        strop.export(folder, tmp_path / "none")
    strop.export(place / "second", tmp_path / "second")
    merged = models.load(str(tmp_path / "second")).model
    alone = models.load("tiny", adapter=str(place / "second")).model
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, alone(ids).logits, atol=1e-4)
    answers = strop.sample(place / "second", "1,2=", n=2, max_tokens=3)
    assert all(answer.text for answer in answers)


def test_pioneer_and_observer_are_two_learners_that_swap(lab, runner, tmp_path):
    plain = lab.raw("cory", reward="even", training={"steps": 2, "rollouts_every": 0})
    plain["model"] |= {"lora_rank": 2}
    plain["roles"] = {"play": {"0": "one", "1": "other"}, "swap_every": 1}
    run = runner.start(plain, tmp_path / "run")
    stages = {}
    real = run.world.policy.shares

    def shares(batch):
        found = real(batch)
        step = run.done + 1
        for name, own, _ in found:
            stages.setdefault((step, name), set()).update(own["stage_B"].tolist())
        return found

    run.world.policy.shares = shares
    start = {name: own.now.inner.detach().clone() for name, own in run.world.critic.each.items()}
    runner.go(run)
    # 0 answers first, 1 with that in sight
    assert stages == {(1, "one"): {0}, (1, "other"): {1}, (2, "one"): {1}, (2, "other"): {0}}
    assert torch.equal(start["one"], start["other"])
    inner = {name: own.now.inner for name, own in run.world.critic.each.items()}
    assert not any(torch.equal(inner[name], start[name]) for name in inner)
    assert not torch.equal(inner["one"], inner["other"])
    assert len(run.world.critic.optimiser.state) == len(run.world.policy.optimiser.state) == 0


def test_a_role_is_tuned_on_given_answers_first_and_the_other_one_is_not(runner, tmp_path):
    both = "until(1, sft) @ warm | gae @ game"
    moved = []

    def look(run):
        model = run.world.policy.model
        moved.append([
            any(bool(weight.any()) for key, weight in model.named_parameters()
                if "lora_B" in key and f".{name}." in key)
            for name in ("first", "second")
        ])  # fmt: skip

    plain = raw(recipe=both, training={"steps": 2})
    del plain["algorithm"]["sampling.num_rollouts"]  # one of a given answer
    runner.go(runner.start(plain, tmp_path / "run"), look)
    assert moved == [[True, False], [True, True]]
    lines = without_times(tmp_path / "run")
    assert [line["phase"] for line in lines if line["step"]] == [1, 2]
    plain["algorithm"]["phases.warm.rollout.role"] = 1
    runner.go(runner.start(plain, tmp_path / "other"), look)
    assert moved[2] == [False, True]
    plain["data"]["task"] = f"{OWN}:Relay"
    with pytest.raises(UserError, match="completion"):
        runner.start(plain, tmp_path / "none")


def test_given_answers_of_a_role_are_validated_under_its_adapter(runner, tmp_path):
    plain = raw(recipe="sft", training={"steps": 1}, evaluation={"every": 1, "max_prompts": 2})
    plain["algorithm"] = {"sampling.num_prompts": 3, "rollout.role": 1}
    run = runner.start(plain, tmp_path / "run")
    acting = []
    policy, columns = run.world.policy, run.world.policy._measured

    def measured(*given):
        acting.append(policy.acting)
        return columns(*given)

    policy._measured = measured
    runner.go(run)
    lines = without_times(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1]
    assert lines[0]["eval/validation/nll"] > lines[1]["eval/validation/nll"] > 0
    assert set(acting) == {"second"}


def test_roles_swap_their_adapters_and_the_moments_begin_anew(runner, tmp_path):
    roles = {**TWO, "swap_every": 1}
    run = runner.start(raw(roles=roles, training={"steps": 2}), tmp_path / "run")
    moments = []
    runner.go(run, lambda run: moments.append(len(run.world.policy.optimiser.state)))
    for step, names in ((1, ("first", "second")), (2, ("second", "first"))):
        rows = pq.read_table(tmp_path / f"run/rollouts/step-{step:06d}.parquet").to_pylist()
        assert {(row["player"], row["adapter"]) for row in rows} == set(enumerate(names))
    assert moments == [0, 0]
    kept = runner.start(
        raw(roles={**roles, "reset_on_swap": False}, training={"steps": 1}), tmp_path / "kept"
    )
    runner.go(kept)
    assert len(kept.world.policy.optimiser.state) > 0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"lora_rank": 0}}, "give model.lora_rank"),
        ({"roles": {"play": {"0": "first"}}}, "the role 1 has no player"),
        ({"roles": {"play": {"0": "default", "1": "b"}}}, "uses the name 'default': take another"),
        ({"roles": {"play": {"0": "opponent_1", "1": "./b"}}}, "uses the name 'opponent_1'"),
        ({"training": {"max_staleness": 1}}, "training.max_staleness do not go together"),
        ({"engine": {"staleness": 1}}, "engine.staleness do not go together"),
        ({"stages": {"control": "step_back_to_anchor"}}, "step_back_to_anchor do not go together"),
        ({"recipe": "arpo", "data": {"task": "corridor"}}, "branch_after_turns knows no roles"),
        ({"roles": {"play": {"0": "first", "1": "no/where"}}}, "no/where holds no adapter"),
        ({"roles": {"play": "ech"}}, "roles.play = 'ech': give each, or a player for each role"),
        (
            {"data": {"task": f"{OWN}:Relay"}, "roles": {"play": {"0": "first", "1": "base"}}},
            "a player that is not trained needs a game",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_first_step(sections, message, tmp_path):
    plain = raw()
    for section, values in sections.items():
        plain[section] = values if isinstance(values, str) else {**plain.get(section, {}), **values}
    if "roles" in sections:
        plain["roles"] = sections["roles"]
    with pytest.raises(UserError, match=message):
        loop.start(config.make(plain), tmp_path / "run")


@pytest.mark.parametrize("recipe", ["dars", "v_half", "xrpo"])
def test_more_rollouts_of_a_group_of_one_role_are_refused(recipe, tmp_path):
    plain = raw(recipe=recipe, roles={}, stages={"rollout": "play_turns"})
    with pytest.raises(UserError, match=r"ask_\w+ requests .* of one group, .* has several roles"):
        loop.start(config.make(plain), tmp_path / "run")


def test_the_model_itself_is_a_reference_of_adapters_that_play_its_roles(runner, tmp_path):
    sections = {"model": {"reference": "tiny"}}
    world = runner.start(raw(recipe="on_policy_distillation", **sections), tmp_path / "run").world
    assert world.policy.adapters == ("first", "second")
    assert adapted.routes_of(world.reference.model) is None


def test_a_role_that_comes_without_a_player_stops_the_run(runner, tmp_path):
    run = runner.start(raw("Relay", roles={"play": {"0": "first"}}), tmp_path / "run")
    with pytest.raises(UserError, match="the role 1 has no player"):
        runner.go(run)
