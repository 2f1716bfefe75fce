import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, learning, ragged_batch, stages
from short_runs import make_lab, run_of, settings_for

from strop import functional
from strop.method.check import check
from strop.recipes.reinforce_plus_plus import reinforce_plus_plus_baseline
from strop.recipes.spae import spae

NAN = float("nan")


def test_worked_example():
    # The card's rollout before standardisation, beside its mirror image to centre the group.
    raw = [0.2852, 1.1385, 0.1390, 0.0631]
    batch = flat_batch((4, 1), reward_B=[1.0, 0.0], potential_T=[0.1, 0.95, 0.97, 0.96, NAN])
    found = stages(spae(), batch)["advantage_T"]
    raw = torch.tensor([*raw, -0.5]).double()  # the other one was not probed: its own advantage
    torch.testing.assert_close(found, (raw - raw.mean()) / raw.std(), atol=2e-4, rtol=0)


def test_padded_call_gives_the_same():
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    potential = torch.tensor([[0.1, 0.95, 0.97, 0.96], [NAN, 0, 0, 0]]).double()
    found = functional.advantages(
        "spae", rewards=torch.tensor([1.0, 0]).double(), groups=torch.zeros(2).long(), mask=mask,
        potential=potential,
    )  # fmt: skip
    batch = flat_batch((4, 1), reward_B=[1.0, 0.0], potential_T=[0.1, 0.95, 0.97, 0.96, NAN])
    torch.testing.assert_close(found[mask], stages(spae(), batch)["advantage_T"])


def test_equals_reinforce_plus_plus_with_baseline_without_both_weights():
    batch = ragged_batch(3)
    batch = batch.set(potential_T=torch.linspace(-1, 1, batch.size("T"), dtype=torch.float64))
    ours = stages(spae(alpha=0.0, xi=0.0), batch)["advantage_T"]
    theirs = stages(reinforce_plus_plus_baseline(), batch)["advantage_T"]
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(stages(spae(), batch)["advantage_T"], theirs)


def test_gradient_is_that_of_the_published_loss():
    algorithm = spae(clip_high=0.24)
    batch = ragged_batch(1, groups=(3, 5, 4))
    potential_T = torch.sin(torch.arange(batch.size("T"), dtype=torch.float64) ** 2)
    batch = stages(algorithm, batch.set(potential_T=potential_T))
    rows = [t for _, tokens in learning(batch) for t in tokens]

    def loss_of(logp_T):
        ratio = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        return clipped(ratio, batch["advantage_T"][rows], 0.2, 0.24).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_steps_are_found_and_asked_in_the_models_letters(tmp_path):
    """The lab's letters, as those of the shipped models, have no full stop and no box."""
    raw = settings_for(make_lab(tmp_path), "spae", training={"steps": 1, "save_every": 0})
    raw["algorithm"]["sampling.num_rollouts"] = 8
    (line,) = run_of(raw, tmp_path / "run")
    assert line["potential/mean"] != 0


def test_composes():
    algorithm = spae(marker="=", opening="", reference="target", num_probes=2)
    check(algorithm)
    assert [use.label for use in algorithm.probes] == ["mark_step_ends", "probe_answers"]
    assert algorithm.probes[0].part.marker == "="
    assert algorithm.probes[1].part.num_answers == 2
    assert algorithm.probes[1].part.max_tokens == 10
    assert algorithm.probes[1].part.temperature == pytest.approx(0.6)
    assert "removes_uniform_groups" in algorithm.facts()
    assert len(algorithm.reward) == 1  # no length penalty
