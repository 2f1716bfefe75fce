"""The critic in training: gradients, heads, checkpoints, and that it learns."""

import dataclasses
import json

import pytest
import torch
from models import Lab, exact_norms, without_times
from runs import world_of
from short_runs import TWO_HEADS
from torch.nn.functional import layer_norm

from strop.method import reading
from strop.method.chains import generators
from strop.method.part import Selected, Term, Update, Use
from strop.parts.loss.value.regress_value import RegressValue
from strop.recipes._base import average
from strop.recipes.gae import gae
from strop.recipes.grpo import grpo
from strop.support.errors import UserError
from strop.training.learner import update
from strop.training.learner.critic import make_critic
from strop.training.learner.kernel import Tally
from strop.training.learner.policy import Policy
from strop.training.learner.step_metrics import critic_metrics
from strop.training.learner.step_models import StepModels
from strop.training.record import checkpoint
from strop.training.settings import config
from strop.training.step import train_step

LOW = (("value_T", "value_low_T"), ("value_old_T", "value_low_old_T"))


@dataclasses.dataclass(frozen=True)
class OnlyFinished:
    """Keeps the rollouts that were not cut off."""

    kind = "selection"

    def __call__(self, truncated_B: torch.Tensor, rollout_T: torch.Tensor) -> Selected:
        keep_T = ~truncated_B[rollout_T]
        return Selected(keep_T, keep_T, "truncated")


def two_heads():
    """gae with a second head that learns the same returns from finished rollouts alone."""
    algorithm = gae(lam=0.9, clip_value=0.05)
    part = Use(RegressValue(0.0), LOW)
    low = Term("low", part, average("token-mean"), on=Use(OnlyFinished()), learner="critic")
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, low))


def small(algorithm):
    for path, value in (("rollout.max_tokens", 6), ("sampling.num_prompts", 3),
                        ("sampling.num_rollouts", 4)):  # fmt: skip
        algorithm = reading.override(algorithm, path, value)
    return algorithm.at_step(1, 1)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A float64 world with two heads that are off 0, and the batch of one step."""
    lab = Lab.make(tmp_path_factory.mktemp("lab"), layers=2)
    algorithm = small(two_heads())
    raw = lab.raw(
        reward="even", critic={"lr": 0.1, "hidden_size": 8}, training={"share_prefixes": "on"}
    )
    raw["model"] = {"name": str(lab.model), "dtype": "float64"}
    _, world = world_of(raw, algorithm)
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in world.critic.heads.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=rng, dtype=weight.dtype)
    world.lr, world.critic.lr = 0.0, 0.0
    batch = train_step(world, algorithm, {}, 1).batch
    move_T = 0.2 * torch.randn(batch.size("T"), generator=rng, dtype=torch.float64)
    batch = batch.set(
        value_old_T=batch["value_T"] + move_T,
        scored_B=batch["index_B"] != 5,
        truncated_B=batch["index_B"] % 4 == 1,
    )
    yield world, algorithm, batch
    world.services.close()


def models_of(world):
    return StepModels(world.policy, 1.0, critic=world.critic)


def test_settings_of_a_critic_that_is_none_are_named(lab):
    of_tiny = dict(config.SMALL["critic"])  # as in the settings of a sequence's later task
    for settings, void in (
        ({}, []), (of_tiny, []), ({"hidden_size": 8, "lr": 0.1}, ["lr", "hidden_size"])
    ):  # fmt: skip
        _, world = world_of(lab.raw(critic=settings))
        world.services.close()
        named = ", ".join(f"critic.{name}" for name in void)
        told = [note for note in world.services.notes if "no critic" in note]
        assert told == [f"the method has no critic: without effect are {named}"] * bool(void)


def gradient(world, terms, batch, token_budget=10**6):
    """Gradients of policy and heads of one update over the batch."""
    world.policy.token_budget = token_budget
    learner = update.Learner(models_of(world), 0.0, generators(0, 1))
    learner.apply(list(terms), batch, 0, Tally())
    found = {}
    for model in (world.policy.model, world.critic.heads):
        for name, weight in model.named_parameters():
            found[name] = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        model.zero_grad()
    return found


def same(one, other, tolerance=1e-10):
    for name, value in other.items():
        scale = max(float(value.abs().max()), 1e-3)
        assert torch.allclose(one[name], value, rtol=0, atol=tolerance * scale), name


def test_any_split_and_order_gives_the_same_gradient(world, monkeypatch):
    exact_norms(monkeypatch)
    world, algorithm, batch = world
    whole = gradient(world, algorithm.terms, batch)
    assert all((whole[name] != 0).any() for name in ("inner", "outer", "lm_head.weight")
               if name in whole)  # fmt: skip
    for token_budget in (1, 23, 40):
        assert len(Policy(world.policy.model, token_budget=token_budget).micro_batches(batch)) > 2
        same(gradient(world, algorithm.terms, batch, token_budget), whole)
    order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(3))
    same(gradient(world, algorithm.terms, batch.take(order), 40), whole)


def test_plain_autograd_gives_the_heads_the_same_gradient_and_the_policy_none(world):
    world, algorithm, batch = world
    assert world.critic.current == ("value_T", "value_low_T")
    heads, losses = world.critic.heads, {"value_T": [], "value_low_T": []}
    for i in range(batch.size("B")):
        rows = (batch["rollout_T"] == i).nonzero().squeeze(1)
        ids = batch["id_T"][rows][None]
        hidden = world.policy.model.model(input_ids=ids).last_hidden_state[0].detach()
        state = layer_norm(hidden, hidden.shape[-1:])
        each = []
        for head in range(2):
            inner = torch.nn.functional.silu(state @ heads.inner[head].T + heads.inner_bias[head])
            each.append(inner @ heads.outer[head] + heads.outer_bias[head])
        values = torch.stack(each, -1)
        for place, t in enumerate(rows.tolist()):
            if batch["mask_T"][t] and batch["scored_B"][i]:
                plain, low = values[place - 1]
                target, old = batch["return_T"][t], batch["value_old_T"][t]
                held = plain.clamp(old - 0.05, old + 0.05)
                losses["value_T"].append(torch.maximum((plain - target) ** 2, (held - target) ** 2))
                if not batch["truncated_B"][i]:
                    losses["value_low_T"].append((low - target) ** 2)
    loss = sum(0.5 * torch.stack(each).mean() for each in losses.values())
    named = dict(heads.named_parameters())
    expected = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    critics = [term for term in algorithm.terms if term.learner == "critic"]
    found = gradient(world, critics, batch, token_budget=40)
    same({name: found[name] for name in expected}, expected)
    assert not any(found[name].any() for name in found.keys() - expected.keys())


def test_heads_learn_in_the_passes_of_the_policy(world, monkeypatch):
    world, algorithm, batch = world
    idle_B = ~batch["scored_B"] | (batch["index_B"] % 3 == 0)  # the policy learns nothing of these
    batch = batch.set(advantage_T=batch["advantage_T"].masked_fill(idle_B[batch["rollout_T"]], 0))
    passes = []
    trunk = Policy._trunk

    def counted(policy, micro, layout):
        passes.append(micro.size("B"))
        return trunk(policy, micro, layout)

    monkeypatch.setattr(Policy, "_trunk", counted)
    apart = {}
    for learner in ("policy", "critic"):
        own = [term for term in algorithm.terms if term.learner == learner]
        found = gradient(world, own, batch, 40)
        named = dict(world.critic.heads.named_parameters())
        apart |= {n: g for n, g in found.items() if (n in named) == (learner == "critic")}
    scored = int(batch["scored_B"].sum())
    assert sum(passes) == int((~idle_B).sum()) + scored
    passes.clear()
    together = gradient(world, algorithm.terms, batch, 40)
    assert sum(passes) == scored
    same(together, apart)


def test_values_are_read_before_the_token_and_scored_on_request(world):
    world, _, batch = world
    world.policy.token_budget = 10**6
    found = world.services.scoring.score(batch, "critic", ("value_T",))["value_T"]
    assert not found[~batch["mask_T"]].any()
    changed = batch.set(id_T=torch.where(batch["mask_T"], (batch["id_T"] + 1) % 20, batch["id_T"]))
    other = world.services.scoring.score(changed, "critic", ("value_T",))["value_T"]
    first_T = batch["mask_T"] & ~batch["mask_T"].roll(1)
    assert torch.allclose(found[first_T], other[first_T], atol=1e-12)
    later_T = batch["mask_T"] & ~first_T
    assert (found[later_T] - other[later_T]).abs().min() > 1e-9
    with pytest.raises(UserError, match=r"computes no value_high_T; it has value_T, value_low_T"):
        world.services.scoring.score(batch, "critic", ("value_high_T",))


def test_explained_variance_by_hand(world):
    world, algorithm, batch = world
    rows_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]
    found = critic_metrics(algorithm.terms, batch)
    value_N, return_N = batch["value_T"][rows_T].double(), batch["return_T"][rows_T].double()
    assert found["critic/value_mean"] == pytest.approx(float(value_N.mean()))
    assert found["critic/return_mean"] == pytest.approx(float(return_N.mean()))
    missed = float((return_N - value_N).var() / return_N.var())
    assert found["critic/explained_variance"] == pytest.approx(1 - missed)
    assert found["critic/low/value_mean"] != found["critic/value_mean"]
    exact = batch.set(value_T=batch["return_T"])
    assert critic_metrics(algorithm.terms, exact)["critic/explained_variance"] == 1
    same_T = torch.ones_like(batch["return_T"])
    assert "critic/explained_variance" not in critic_metrics(
        algorithm.terms, batch.set(return_T=same_T)
    )


def test_a_critic_without_rows_takes_no_step(world):
    world, algorithm, batch = world
    low = [term for term in algorithm.terms if term.name == "low"]
    cut = batch.set(truncated_B=torch.ones_like(batch["truncated_B"]))
    learner = update.Learner(models_of(world), 0.0, generators(0, 1))
    assert learner.apply(low, cut, 0, Tally()) == []
    assert learner.apply(low, batch, 0, Tally()) == ["critic"]
    world.critic.heads.zero_grad()


def raw_of(lab, steps=4, **critic):
    raw = lab.raw("gae(lam=0.95)", reward="even", training={"steps": steps, "save_every": 2})
    raw["algorithm"]["plan.num_minibatches"] = 2
    return {**raw, "critic": {"lr": "linear(1e-2, 0)", **critic}}


@pytest.fixture(scope="module")
def unbroken(lab, tmp_path_factory):
    from runs import Runner

    folder = tmp_path_factory.mktemp("unbroken") / "run"
    Runner().whole(raw_of(lab), folder)
    return folder


def critic_of(folder):
    return checkpoint.read(checkpoint.newest(folder / "checkpoints"), "critic.pt")


def test_goes_on_bit_for_bit(lab, unbroken, runner, tmp_path):
    folder = tmp_path / "run"
    run = runner.start(raw_of(lab), folder)

    def stop(run):
        run.stop_asked = run.done == 3

    runner.go(run, at_step=stop)
    assert checkpoint.newest(folder / "checkpoints").name == "step-000003"
    runner.go(runner.resume(folder))
    assert without_times(folder) == without_times(unbroken)
    one, two = critic_of(folder), critic_of(unbroken)
    assert one["columns"] == two["columns"] == ["value_T"]
    for name, weight in one["heads"].items():
        assert weight.equal(two["heads"][name])
        assert weight.any()
    for number, state in one["optimiser"]["state"].items():
        for name, value in state.items():
            assert value.equal(two["optimiser"]["state"][number][name])
    rates = [line["critic/learning_rate"] for line in without_times(unbroken)]
    assert rates == pytest.approx([1e-2 * (1 - step / 4) for step in range(4)])


def test_a_checkpoint_of_another_critic_is_refused(unbroken, runner, tmp_path):
    with pytest.raises(UserError, match=r"keep the method, the model and critic.hidden_size"):
        runner.resume(unbroken, critic={"hidden_size": 5}, training={"steps": 5})
    place = checkpoint.newest(unbroken / "checkpoints")
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.read(place, "no.pt")


def test_bad_rates_are_refused(lab):
    with pytest.raises(UserError, match=r"critic.lr must be a number >= 0"):
        config.make(raw_of(lab, lr=-1.0)).build()


def test_values_begin_at_0_and_learn_the_returns_in_20_steps(runner, tmp_path):
    """The reward is the same for every answer of one half of the prompts, so prompts tell it."""
    rewards = tmp_path / "own.py"
    rewards.write_text(
        "def known(prompts, completions, **columns):\n"
        "    return [float(p[0] in '01234') for p in prompts]\n"
    )
    training = {"steps": 20, "save_every": 0, "rollouts_every": 0, "lr": 1e-3}
    raw = Lab.make(tmp_path / "lab", layers=2).raw("gae", training=training)
    raw["reward"] = {"functions": [f"{rewards}:known"]}
    raw["critic"] = {"lr": 3e-2}
    raw["algorithm"]["sampling.num_prompts"] = 6
    folder = tmp_path / "run"
    runner.whole(raw, folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["critic/value_mean"] == 0
    assert lines[0]["critic/loss"] == pytest.approx(lines[0]["critic/return_mean"] / 2)
    assert lines[0]["loss"] == pytest.approx(lines[0]["policy_loss"])
    explained = [line["critic/explained_variance"] for line in lines[-5:]]
    assert sum(explained) / 5 > 0.3
    assert lines[-1]["critic/loss"] < 0.5 * lines[0]["critic/loss"]


def test_heads_follow_the_seed_and_keep_float32_under_half_precision():
    model = torch.nn.Module()
    model.get_output_embeddings = lambda: torch.nn.Linear(6, 9, dtype=torch.bfloat16)
    model.weight = torch.nn.Parameter(torch.zeros(1))
    model.config = type("Config", (), {})()
    options = {"hidden_size": 0, "lr": 0.1, "betas": (0.9, 0.95), "max_grad_norm": 1.0}
    one, two, other = (
        make_critic(("value_T",), Policy(model), seed=s, **options) for s in (1, 1, 2)
    )
    assert one.heads.inner.shape == (1, 6, 6)
    assert one.heads.inner.equal(two.heads.inner)
    assert not one.heads.inner.equal(other.heads.inner)
    states = torch.randn(2, 3, 6).bfloat16()
    assert one.heads(*states)["value_T"].dtype == torch.float32


def test_a_second_head_is_trained_in_a_run(lab, runner, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(TWO_HEADS)
    raw = lab.raw(f'"{own}:two_heads"', reward="even", training={"steps": 2})
    runner.whole(raw, tmp_path / "run")
    lines = without_times(tmp_path / "run")
    assert {"critic/value_mean", "critic/low/value_mean", "loss/low"} <= lines[-1].keys()
    assert critic_of(tmp_path / "run")["columns"] == ["value_T", "value_low_T"]
    assert lines[1]["critic/low/value_mean"] != 0


def test_gae_needs_nothing_refreshed_but_its_values():
    from strop.method.algorithm import wanted_columns

    assert wanted_columns(gae()) == {"value_T", "value_old_T"}


def test_an_update_takes_the_terms_that_it_names_or_all_of_a_learner():
    own, value = gae().terms
    tokens_T = torch.ones(1, dtype=torch.bool)
    for names, expected in (
        ((), [own, value]), ((own.name,), [own]), (("critic",), [value]),
    ):  # fmt: skip
        assert update.terms_of(gae(), Update(tokens_T, terms=names)) == expected
    assert update.terms_of(grpo(), Update(tokens_T, terms=("critic",))) == []
    with pytest.raises(UserError, match="an Update is for the term 'none', which the method does"):
        update.terms_of(gae(), Update(tokens_T, terms=("none",)))


def test_losses_are_means_over_the_updates_that_had_them():
    own, value = gae().terms
    tally = Tally(losses={own.name: torch.tensor(6.0), value.name: 2.0})
    found = update._losses(tally, [own, value], {own.name: 4, value.name: 0})
    assert found == {"policy_loss": 1.5, "loss": 1.5, "loss/value": 2.0, "critic/loss": 2.0}
