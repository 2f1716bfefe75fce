"""The behaviour of every reward, probe and rate on ragged batches."""

import torch
from every import every
from ragged import copies, with_noise_outside, with_unscored
from staged import alike, entries, kept

from strop.batch.batch import level_of
from strop.method import part as parts
from strop.support.errors import UserError

ENTRIES = entries("reward", "probe", "rate")
every_part = every("entry", ENTRIES)
# A draw follows the order of the rows; equal seeds are another test.
STILL = [e for e in ENTRIES if "rng" not in e.reads]
every_still_part = every("entry", STILL)
SIZES = (4, 3, 2)


def written(place, batch, seed=0):
    """What the part writes, by column; a rate gives one number, which no batch holds."""
    outcome = place.call(batch, seed=seed)
    if parts.kind_of(place.use.part) == "rate":
        return {"lr_scale": torch.as_tensor(outcome.value)}
    after = parts.write(batch, place.use, outcome)
    return {name: torch.as_tensor(after[name]) for name in parts.writes(place.use)}


@every_part
def test_inputs_stay_as_they_are(entry, stages):
    place = stages.of(entry)
    batch = place.batch(1, SIZES)
    before = kept(batch)
    written(place, batch)
    assert alike(kept(batch), before)


@every_part
def test_same_seed_same_result(entry, stages):
    place = stages.of(entry)
    batch = place.batch(2, SIZES)
    assert alike(written(place, batch, seed=3), written(place, batch, seed=3))


@every_part
def test_columns_have_the_size_of_their_table_and_are_finite_for_scored_rollouts(entry, stages):
    place = stages.of(entry)
    whole = place.batch(3, SIZES)
    uniform = whole.set(
        **{k: torch.full_like(whole[k], 0.3) for k in ("reward_B", "outcome_B", "reward_BM")}
    )
    batches = {
        "ragged": whole,
        "uniform": uniform,
        "empty": whole.keep(whole["index_B"] < 0),
        "unscored": whole.set(scored_B=torch.zeros_like(whole["scored_B"])),
    }
    for name, batch in batches.items():
        check(written(place, batch), batch, name)


@every_part
def test_a_lone_rollout_is_finite_or_refused_in_words(entry, stages):
    place = stages.of(entry)
    batch = place.batch(5, (1,))
    told = ""
    try:
        check(written(place, batch), batch, "one rollout")
    except UserError as error:
        told = str(error)
    assert not told or told.startswith(entry.name)


def check(found, batch, name):
    """Sizes are right; nothing is infinite, or unknown of a rollout with a score."""
    for column, value in found.items():
        level = level_of(column)
        assert value.shape[:1] == ((batch.size(level),) if level else ()), (name, column)
        assert not value.double().isinf().any(), (name, column)
        if level == "B" and column != "reward_BM":
            assert torch.isfinite(value[batch["scored_B"]].double()).all(), (name, column)


@every_still_part
def test_permuting_rollouts_permutes_the_result(entry, stages):
    place = stages.of(entry)
    batch = place.batch(4, SIZES)
    found = written(place, batch)
    same = []
    for seed in range(4):
        order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(seed))
        moved = batch.set(**{f"found:{name}": value for name, value in found.items()}).take(order)
        expected = {name: torch.as_tensor(moved[f"found:{name}"]) for name in found}
        same.append(alike(written(place, batch.take(order)), expected))
    states = "order_matters" in parts.facts(place.use)
    assert all(same) != states, f"it states order_matters: {states}"


@every_still_part
def test_equal_rollouts_are_treated_alike_or_the_part_states_that_order_breaks_ties(entry, stages):
    place, same = stages.of(entry), []
    for seed in range(4):
        for name, value in written(place, copies(place.batch(seed, SIZES), 2)).items():
            if level_of(name) in ("B", "K", "T"):
                one, other = value.double().chunk(2)
                same.append(torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
    facts = parts.facts(place.use)
    states = "order_breaks_ties" in facts
    if states or "order_matters" not in facts:
        assert all(same) != states, f"it states order_breaks_ties: {states}"


@every_part
def test_values_outside_the_mask_never_matter(entry, stages):
    place = stages.of(entry)
    batch = place.batch(6, SIZES)
    found = written(place, with_noise_outside(batch))
    other = written(place, with_noise_outside(batch, 0.0))
    for name, value in found.items():
        rows = batch["mask_T"] if level_of(name) == "T" else ...
        assert alike(value[rows], other[name][rows]), name


@every_part
def test_unscored_rollouts_take_part_in_nothing(entry, stages):
    place = stages.of(entry)
    batch, other = with_unscored(place.batch(7, SIZES), 0, 5)
    found, changed = written(place, batch), written(place, other)
    for name, value in found.items():
        rollout = {"B": "index_B", "K": "rollout_K", "T": "rollout_T"}.get(level_of(name))
        row = batch["scored_B"][batch[rollout]] if rollout else ...
        assert alike(value[row], changed[name][row]), name
