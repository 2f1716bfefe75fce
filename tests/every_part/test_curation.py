"""The behaviour of every curation on ragged batches."""

import dataclasses

import torch
from every import every
from ragged import copies, with_noise_outside, with_unscored
from staged import Staged, alike, copied, entries, kept, restored

from strop.batch.batch import Batch
from strop.method import part as parts
from strop.method.part import Curated, Draw

ENTRIES = entries("curation")
every_part = every("entry", ENTRIES)
STILL = [e for e in ENTRIES if "rng" not in e.reads]
every_still_part = every("entry", STILL)
KEEPING = [e for e in ENTRIES if hasattr(e.load(), "init")]
SIZES = (4, 3, 2)

# Options with which every part takes effect in so small batches.
OPTIONS = {
    "drop_uniform_starts": {"max_rounds": 1},
    "replay_groups": {"after": 0},
    "replay_successes": {"size": 1},
}
IDLE = ("train_on_shared_groups",)  # without a folder that other runs write into


def placed(entry, stages) -> Staged:
    """The part's place, with its options."""
    place = stages.of(entry)
    part = parts.replace(place.part, **OPTIONS.get(entry.name, {}))
    return dataclasses.replace(place, use=dataclasses.replace(place.use, part=part))


def batch_of(place, seed, sizes=None) -> Batch:
    """A batch whose first group has equal rewards, of its turns too."""
    batch = place.batch(seed, sizes)
    equal_K = batch["group_B"][batch["rollout_K"]] == 0
    names = ("return_K", "reward_K")
    return batch.set(**{name: torch.where(equal_K, 1, batch[name]) for name in names})


def begun(place):
    """The part's state after a step; None where it keeps none."""
    if not hasattr(place.part, "init"):
        return None
    return curated(place, batch_of(place, 9, SIZES), place.part.init())[1]


def curated(place, batch, state, seed=0, step=1) -> tuple[Curated, object]:
    outcome = place.call(batch, state, seed, step)
    return outcome.value, outcome.state


def check(answer: Curated, batch: Batch) -> None:
    """Rows to keep, rows that fit beside them, draws that can be drawn."""
    assert answer.keep_B.shape == (batch.size("B"),)
    assert answer.keep_B.dtype == torch.bool
    assert answer.reason.isidentifier()
    if answer.add is not None:
        joined = batch.keep(answer.keep_B).join(answer.add)
        assert joined.size("B") == int(answer.keep_B.sum()) + answer.add.size("B")
    if isinstance(answer.ask, int):
        assert answer.ask >= 0
    else:
        known = batch["uid_P"].tolist()
        for draw in answer.ask:
            assert isinstance(draw, Draw)
            assert draw.num_rollouts > 0
            assert draw.uid in known


@every_part
def test_inputs_stay_as_they_are(entry, stages):
    place = placed(entry, stages)
    batch = batch_of(place, 1, SIZES)
    state = begun(place)
    before = kept(batch), copied(state)
    curated(place, batch, state)
    assert alike((kept(batch), state), before)


@every_part
def test_rows_kept_added_and_asked_for_fit_together(entry, stages):
    place = placed(entry, stages)
    for seed in range(3):
        batch = batch_of(place, seed)
        check(curated(place, batch, begun(place))[0], batch)


@every_part
def test_same_seed_same_result(entry, stages):
    place = placed(entry, stages)
    batch = batch_of(place, 2, SIZES)
    assert alike(
        curated(place, batch, begun(place), seed=3), curated(place, batch, begun(place), seed=3)
    )


@every_still_part
def test_permuting_rollouts_permutes_the_result_or_the_part_states_that_order_matters(
    entry, stages
):
    place = placed(entry, stages)
    batch = batch_of(place, 4, SIZES)
    order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(4))
    one, _ = curated(place, batch, begun(place))
    other, _ = curated(place, batch.take(order), begun(place))
    states = "order_matters" in parts.facts(place.use)
    assert other.keep_B.equal(one.keep_B[order]) != states, f"it states order_matters: {states}"
    assert other.reason == one.reason
    asked = [each.ask if isinstance(each.ask, int) else sorted(each.ask) for each in (one, other)]
    assert alike(*asked)
    sizes = [each.add.size("B") if each.add is not None else 0 for each in (one, other)]
    assert sizes[0] == sizes[1]


@every_still_part
def test_equal_rollouts_stay_or_go_together_or_the_part_states_that_order_breaks_ties(
    entry, stages
):
    place, same = placed(entry, stages), []
    for seed in range(4):
        keep_B = curated(place, copies(batch_of(place, seed, SIZES), 2), begun(place))[0].keep_B
        same.append(torch.equal(*keep_B.chunk(2)))
    states = "order_breaks_ties" in parts.facts(place.use)
    assert all(same) != states, f"it states order_breaks_ties: {states}"


@every_part
def test_values_outside_the_mask_never_matter(entry, stages):
    place = placed(entry, stages)
    batch = batch_of(place, 6, SIZES)
    one, _ = curated(place, with_noise_outside(batch), begun(place))
    other, _ = curated(place, with_noise_outside(batch, 0.0), begun(place))
    assert one.keep_B.equal(other.keep_B)
    assert alike(one.ask, other.ask)


@every_part
def test_unscored_rollouts_take_part_in_nothing(entry, stages):
    place = placed(entry, stages)
    batch, other = with_unscored(batch_of(place, 7, SIZES), 0, 5)
    one, _ = curated(place, batch, begun(place))
    changed, _ = curated(place, other, begun(place))
    scored_B = batch["scored_B"]
    assert one.keep_B[scored_B].equal(changed.keep_B[scored_B])
    assert alike(one.ask, changed.ask)
    added = [each.add and each.add.keep(each.add["scored_B"]) for each in (one, changed)]
    assert alike(*added)


@every_part
def test_empty_single_and_uniform_groups(entry, stages):
    place = placed(entry, stages)
    whole = batch_of(place, 3, SIZES)
    names = ("reward_B", "outcome_B", "return_K", "reward_K")
    same = {name: torch.full_like(whole[name], 1.0) for name in names}
    for batch in (
        whole.set(**same),
        whole.set(scored_B=torch.zeros_like(whole["scored_B"])),
        whole.keep(whole["index_B"] < 0),
        batch_of(place, 5, (1,)),
    ):
        check(curated(place, batch, begun(place))[0], batch)


@every("entry", KEEPING)
def test_a_state_that_was_saved_goes_on_as_it_would_have(entry, stages, tmp_path):
    place = placed(entry, stages)
    state, acts = place.part.init(), False
    for step in (1, 2, 3):
        batch = batch_of(place, step, SIZES).set(step=torch.tensor(step))
        whole = curated(place, batch, state, step=step)
        loaded = curated(place, batch, restored(state, tmp_path), step=step)
        assert alike(loaded, whole)
        answer, state = whole
        check(answer, batch)
        acts |= answer.add is not None or bool(answer.ask) or not answer.keep_B.all()
        if hasattr(place.part, "update"):
            state = parts.update(place.use, batch, state)
    assert acts != (entry.name in IDLE), f"it drops, adds or asks for rows: {acts}"
