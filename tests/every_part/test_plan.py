"""The behaviour of every plan: its updates cover all tokens that learn, and it ends."""

import pytest
import torch
from every import every
from ragged import ragged_batch, with_noise_outside
from staged import alike, entries, kept

from strop.method import part as parts
from strop.method.part import Update

ENTRIES = entries("plan")
every_part = every("entry", ENTRIES)
MOST = 200


def updates(place, batch, seed=0) -> list[Update]:
    """All updates of a step in which log-probabilities move a little with every one."""
    batch = batch.set(step=torch.tensor(30))  # after every warm-up
    plan = place.call(batch, seed=seed).value
    found: list[Update] = []
    answer = None
    while True:
        try:
            update = plan.send(answer)
        except StopIteration:
            return found
        assert isinstance(update, Update)
        found.append(update)
        assert len(found) <= MOST, "the plan does not end"
        names = (*update.before, *update.after)
        moved = {n: batch[n] + 0.01 * len(found) for n in names if n.startswith("logp")}
        here_T = update.tokens_T
        answer = (batch, {n: torch.where(here_T, value, 0.0) for n, value in moved.items()})


@every_part
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_token_with_gradient_is_in_an_update(entry, stages, seed):
    place = stages.of(entry)
    batch = ragged_batch(seed)
    before = kept(batch)
    found = updates(place, batch)
    covered = {update.terms: torch.zeros_like(batch["mask_T"]) for update in found}
    for update in found:
        assert update.tokens_T.shape == batch["mask_T"].shape
        assert update.tokens_T.dtype == torch.bool
        assert not (update.tokens_T & ~batch["mask_T"]).any()
        assert update.factor_T is None or torch.isfinite(update.factor_T[update.tokens_T]).all()
        covered[update.terms] |= update.tokens_T
    assert all((covered_T | ~batch["gradient_T"]).all() for covered_T in covered.values())
    assert alike(kept(batch), before)
    most = getattr(place.part, "num_updates", None)
    assert most is None or len(found) <= most


@every_part
def test_same_seed_same_updates(entry, stages):
    place = stages.of(entry)
    batch = ragged_batch(4)
    one, other = (list(map(tuple, updates(place, batch, seed=5))) for _ in range(2))
    assert alike(one, other)


@every_part
def test_values_outside_the_mask_never_matter(entry, stages):
    place = stages.of(entry)
    batch = ragged_batch(6)
    one = updates(place, with_noise_outside(batch))
    other = updates(place, with_noise_outside(batch, 0.0))
    assert alike([u.tokens_T for u in one], [u.tokens_T for u in other])
    for left, right in zip(one, other, strict=True):
        if left.factor_T is not None:
            assert alike(left.factor_T[left.tokens_T], right.factor_T[right.tokens_T])


@every_part
def test_a_batch_of_one_or_no_rollout(entry, stages):
    place = stages.of(entry)
    whole = ragged_batch(3, (1,))
    one = whole.set(gradient_T=whole["mask_T"], denominator_T=whole["mask_T"])
    assert any(bool(update.tokens_T.any()) for update in updates(place, one))
    for update in updates(place, whole.keep(whole["index_B"] < 0)):
        assert update.tokens_T.shape == (0,)


def test_places_are_those_of_methods(stages):
    assert all(parts.name_of(stages.of(entry).part) == entry.name for entry in ENTRIES)
