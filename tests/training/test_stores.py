"""Methods with a store of rollouts and slow copies of the critic, as a whole."""

import pytest
import torch
from models import without_times

from strop.batch import segments
from strop.method.chains import generators
from strop.support.errors import UserError
from strop.training.learner import update
from strop.training.learner.kernel import Tally
from strop.training.record import checkpoint
from strop.training.settings import config
from strop.training.step import train_step

ENVIRONMENT = """
from strop.environments.base import Environment, Observation


class Even(Environment):
    max_turns, max_tokens, reward_range = 3, 2, (0.0, 3.0)

    def reset(self, seed):
        self.turn = 0
        return Observation(f"{seed % 7}:")

    def step(self, action):
        self.turn += 1
        even = sum(c.isdigit() for c in action) % 2 == 0
        return Observation(f"={self.turn}:", float(even), self.turn == 3)
"""
TREE = {"rollout.branching": [2, 2], "rollout.segment_tokens": 2, "curation.per_prompt": 1}
OF = {
    "archer": {"plan.warmup_steps": 1, "plan.num_critic_updates": 3, "curation.num_drawn": 5},
    "hiper_hae(switch_tags=('(', ')'), subgoal_tags=('+', '-'), action_tags=('*', '/'))": {},
    "spo_tree(p0=1.0)": {**TREE, "curation.max_age": 3},
}


def raw_of(lab, recipe, steps=3, **sections):
    raw = lab.raw(recipe, reward="even", training={"steps": steps, "save_every": 2}, **sections)
    raw["algorithm"] |= OF[recipe] | {"rollout.temperature": 2.0}
    raw.setdefault("critic", {"lr": 1e-2})
    if not recipe.startswith("spo_tree"):
        file = lab.data.parent / "even.py"
        file.write_text(ENVIRONMENT, encoding="utf-8")
        raw["data"] = {"task": f"{file}:Even", "train_size": 12, "validation_size": 2}
        raw["reward"] = {}
    return raw


def saved(folder):
    place = checkpoint.newest(folder / "checkpoints")
    critic = (place / "critic.pt").exists()
    return checkpoint.read(place), checkpoint.read(place, "critic.pt") if critic else {}


def same(one, other):
    """Equal numbers and tensors, however deep."""
    if isinstance(one, torch.Tensor):
        assert torch.allclose(one.double(), other.double(), rtol=0, atol=0, equal_nan=True)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for value, its in zip(one, other, strict=True):
            same(value, its)
    else:
        assert one == other


@pytest.mark.parametrize("recipe", OF)
def test_goes_on_bit_for_bit(recipe, lab, runner, tmp_path):
    runner.whole(raw_of(lab, recipe), tmp_path / "whole")
    run = runner.start(raw_of(lab, recipe), tmp_path / "broken")

    def stop(run):
        run.stop_asked = run.done == 2

    runner.go(run, at_step=stop)
    runner.go(runner.resume(tmp_path / "broken"))
    assert without_times(tmp_path / "broken") == without_times(tmp_path / "whole")
    for one, other in zip(saved(tmp_path / "broken"), saved(tmp_path / "whole"), strict=True):
        same(one, other)
    lines = without_times(tmp_path / "whole")
    if "hiper" not in recipe:
        assert any(line["replay/age_mean"] > 0 for line in lines)
        state, _ = saved(tmp_path / "whole")
        (kept,) = (v for k, v in state["state"].items() if k.startswith("curation.replay_"))
        store = kept["columns"]
        assert store["rollout_K"].numel() > 0


@pytest.fixture
def stepped(lab, runner, tmp_path):
    """A world of archer after two steps, its algorithm and the second step's batch."""
    raw = raw_of(lab, "archer")
    raw["algorithm"] |= {"plan.warmup_steps": 5, "curation.num_drawn": 6}
    run = runner.start(raw, tmp_path / "run")
    first = train_step(run.world, run.algorithm, {}, 1)
    return run.world, run.algorithm, train_step(run.world, run.algorithm, first.state, 2).batch


def test_fresh_actions_stand_where_stored_ones_stood(stepped):
    world, _, batch = stepped
    old_B = batch["origin_T"].new_zeros(batch.size("B"), dtype=torch.bool)
    old_B[batch["rollout_T"][batch["origin_T"] == 4]] = True
    assert int(old_B.sum()) == 6
    assert int((~old_B).sum()) == 18  # three turns each
    contexts = set()
    for i in old_B.nonzero().squeeze(1).tolist():
        ids, mask = (batch[n][batch["rollout_T"] == i].tolist() for n in ("id_T", "mask_T"))
        starts = [t for t in range(len(ids)) if mask[t] and not mask[t - 1]]
        contexts |= {tuple(ids[:t]) for t in starts}
    for i in (~old_B).nonzero().squeeze(1).tolist():
        rows_T = batch["rollout_T"] == i
        ids, mask = batch["id_T"][rows_T], batch["mask_T"][rows_T]
        assert tuple(ids[~mask].tolist()) in contexts
        assert 1 <= int(mask.sum()) <= 2
        assert mask.long().diff().min() >= 0
    fresh_T = (batch["origin_T"] == 0) & batch["mask_T"]
    assert fresh_T.equal(batch["gradient_T"])
    assert (batch["version_T"][fresh_T] == 1).all()
    found = world.policy.columns(batch, ("logp_T",), 2.0)["logp_T"]
    assert torch.allclose(found[fresh_T], batch["logp_sampler_T"][fresh_T], atol=1e-4)


def test_the_value_of_an_action_knows_all_of_it(stepped):
    world, _, batch = stepped
    changed = batch.set(id_T=torch.where(batch["mask_T"], (batch["id_T"] + 1) % 20, batch["id_T"]))
    with torch.no_grad():
        world.critic.heads.outer.normal_(generator=torch.Generator().manual_seed(0))
    names = ("value_T", "value_after_T")
    one, other = (world.critic.columns(b, names) for b in (batch, changed))
    rows = batch["mask_T"].nonzero().squeeze(1)
    first_B = rows[segments.first(batch["rollout_T"][rows], batch.size("B"))]
    first_T = torch.zeros_like(batch["mask_T"])
    first_T[first_B] = True  # nothing before it has changed
    assert torch.allclose(one["value_T"][first_T], other["value_T"][first_T], atol=1e-5)
    apart = (one["value_after_T"] - other["value_after_T"])[first_T].abs()
    assert float(apart.min()) > 1e-6


def test_slow_copies_follow_after_every_update(stepped):
    world, algorithm, batch = stepped
    critic = world.critic
    assert critic.slow_columns[0] == "value_slow_T"
    assert critic.target_tau == 0.1
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight, slow in zip(critic.heads.parameters(), critic.slow.parameters(), strict=True):
            weight.fill_(2.0).add_(torch.randn(weight.shape, generator=rng))
            slow.fill_(1.0)
    terms = [term for term in algorithm.at_step(1, 1).terms if term.learner == "critic"]
    learner = update.Learner(world.act(algorithm), 0.0, generators(0, 1))
    learner.apply(terms, batch, 0, Tally())
    critic.update(0.0)  # weights stay: 1 and w make 1.1 of w = 2
    for weight, slow in zip(critic.heads.parameters(), critic.slow.parameters(), strict=True):
        assert torch.allclose(slow, 0.9 + 0.1 * weight, atol=1e-6)
        assert not slow.requires_grad
    heads = critic.columns(batch, ("value_T", "value_slow_T"))
    assert not torch.allclose(heads["value_T"], heads["value_slow_T"])
    with pytest.raises(UserError, match="computes no value_low_T"):
        critic.columns(batch, ("value_low_T",))


def test_targets_are_taken_anew_within_a_step(stepped):
    world, algorithm, batch = stepped
    algorithm = algorithm.at_step(2, 4)
    learner = update.Learner(world.act(algorithm), 0.0, generators(0, 2))
    with torch.no_grad():
        world.critic.slow.outer_bias.fill_(3.0)
        world.critic.slow.outer.fill_(0.0)
    anew = learner._recompute_advantages(algorithm, batch, 0)
    turn_K = batch["rollout_K"]
    last_K = torch.cat([turn_K.diff() != 0, torch.ones(1, dtype=torch.bool)])
    expected_K = batch["reward_K"] + 0.95 * 3.0 * (~last_K & ~batch["done_K"])
    torch.testing.assert_close(anew["return_value_after_K"], expected_K)
    rows_T = anew["at_value_T"]
    assert (anew["return_value_T"][rows_T] == 3.0).all()
    assert rows_T.any()


def test_two_critics_with_the_same_targets_differ(stepped):
    world, _, batch = stepped
    found = world.critic.columns(batch, ("value_after_T", "value_after_second_T"))
    rows_T = batch["mask_T"]
    assert (found["value_after_T"] - found["value_after_second_T"])[rows_T].abs().max() > 1e-6


def test_only_methods_with_targets_keep_slow_copies(lab, runner, tmp_path):
    run = runner.start(raw_of(lab, next(r for r in OF if "hiper" in r)), tmp_path / "run")
    assert run.world.critic.slow is None
    assert "slow" not in run.world.critic.state_dict()
    with pytest.raises(UserError, match=r"critic\.target_tau"):
        config.make(raw_of(lab, "archer", critic={"target_tau": 0.0}))
