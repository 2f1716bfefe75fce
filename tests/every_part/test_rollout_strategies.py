"""The behaviour of every strategy on an engine without a model: whole groups, in drawn order."""

import dataclasses
import functools

import torch
from every import every
from fakes.engine import TableEngine
from staged import alike, copied, entries, restored

from strop.batch.batch import KEPT_AT, KEPT_IDS, NUM_KEPT
from strop.batch.kept import check_known
from strop.engines.asynchronous import asynchronous
from strop.engines.base import STATISTICS
from strop.method import part as parts
from strop.method.part import Draw, Use
from strop.parts.rollout import substitutes
from strop.parts.rollout.base import SamplingFields, roll_out
from strop.parts.rollout.read_answers import ReadAnswers
from strop.support.exits import Exit

ENTRIES = entries("rollout")
every_part = every("entry", ENTRIES)
KEEPING = [e for e in ENTRIES if hasattr(e.load(), "init")]


def engine_for(world, kind=TableEngine, end=4.0):
    """Tokens are likely or not by the two before them; an answer ends after a few."""
    number = world.services.texts.num_tokens

    @functools.cache
    def after(last):
        weights = torch.tensor([(7 * n + last) % 5 + 0.5 for n in range(number)])
        weights[:3] = 0
        weights[1] = end
        return (weights / weights.sum()).tolist()

    return kind(
        lambda tokens: after(sum(tokens[-2:]) % 5),
        text=lambda ids: world.services.texts.decode(ids),
    )


def rolled(place, draws, state=None, seed=0, step=1, engine=None):
    """Batch and state of a strategy that has run to its end."""
    engine = engine or engine_for(place.world)
    chains = place.chains(state, seed, step)
    handed = {"draws": draws, "engine": asynchronous(engine)}
    strategy = chains.call("rollout", place.use, None, **handed).value
    batch, new_state, discarded, _ = roll_out(strategy, engine, place.world.services)
    stated = "samples_again" in parts.facts(place.use)  # so that `costs` tells of it
    refused = place.part.needs_agent and isinstance(engine, Failing)  # whole calls of its agents
    assert stated or refused or discarded == 0, (
        "state the fact samples_again: not all that is drawn is taken"
    )
    found = batch, new_state
    assert not asynchronous(engine).busy()
    assert engine.rows == {}, "requests are left behind"
    return found


def draws_of(place, *sizes):
    """Draws of several prompts; of as many rollouts as there are answers, where they are given."""
    given = len(place.part.given)
    return tuple(Draw(place.world.pool[3 * n % 7], given or size) for n, size in enumerate(sizes))


def fewest(place, draw):
    """Rollouts of a draw: those that it asks for, or the branches of a tree that ends at once."""
    return getattr(place.part, "branching", (draw.num_rollouts,))[0]


@every_part
def test_a_batch_has_the_columns_that_it_writes_and_the_groups_that_were_drawn(entry, stages):
    place = stages.of(entry)
    draws = draws_of(place, 4, 2, 6)
    before = copied(draws)
    batch, _ = rolled(place, draws)
    assert alike(draws, before)
    assert set(batch.columns) == set(parts.writes(place.use))
    groups = zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True)
    assert list(groups) == [(draw.uid, draw.draw) for draw in draws]
    for uid, group in zip(batch["uid_P"].tolist(), range(len(draws)), strict=True):
        prompt = list(place.world.services.texts.prompt_ids(uid))
        assert int((batch["group_B"] == group).sum()) >= fewest(place, draws[group])
        for row in (batch["group_B"] == group).nonzero().squeeze(1).tolist():
            own_T = batch["rollout_T"] == row
            assert batch["id_T"][own_T][: len(prompt)].tolist() == prompt
            assert not batch["mask_T"][own_T][: len(prompt)].any()


@every_part
def test_policy_tokens_have_log_probabilities_of_the_engine_and_a_limit(entry, stages):
    place = stages.of(entry)
    batch, _ = rolled(place, draws_of(place, 4, 2))
    mask_T = batch["mask_T"]
    assert mask_T.any()
    for name in ("logp_behavior_T", "logp_sampler_T"):
        if name in batch:
            value_T = batch[name][mask_T]
            assert (value_T[~value_T.isnan()] <= 1e-6).all()
    assert batch["rollout_uid_B"].unique().numel() == batch.size("B")
    assert (batch["length_B"] <= place.world.services.limits.episode_tokens).all()


@every_part
def test_same_seed_same_rollouts_in_any_number_of_slots(entry, stages):
    place = stages.of(entry)
    draws = draws_of(place, 4, 3)
    one, _ = rolled(place, draws, seed=2)
    narrow = engine_for(place.world)
    narrow.num_slots = 2
    assert alike(one["id_T"], rolled(place, draws, seed=2, engine=narrow)[0]["id_T"])


@every_part
def test_one_prompt(entry, stages):
    place = stages.of(entry)
    batch, _ = rolled(place, draws_of(place, 2))
    assert batch.size("P") == 1
    assert batch.size("B") >= 1


@every("entry", KEEPING)
def test_a_state_that_was_saved_goes_on_as_it_would_have(entry, stages, tmp_path):
    place = stages.of(entry)
    if hasattr(place.part, "detect_at"):  # at its default behind the end of such short answers
        part = parts.replace(place.part, detect_at=3)
        place = dataclasses.replace(place, use=dataclasses.replace(place.use, part=part))
    draws = draws_of(place, 4, 2)
    state = place.part.init()
    for step in (1, 2, 3):
        batch, new = rolled(place, draws, state, step=step)
        assert alike((batch, new), rolled(place, draws, restored(state, tmp_path), step=step))
        state = new if new is not None else state
        if hasattr(place.part, "update"):
            state = parts.update(place.use, batch, state)
    assert not alike(state, place.part.init())


class Recording(TableEngine):
    """Keeps what it was asked, forks included."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked = []

    def start(self, id, request, source=None):
        self.asked.append(request)
        super().start(id, request, source)


@every_part
def test_an_engine_that_has_no_more_than_it_needs_is_enough(entry, stages):
    place = stages.of(entry)
    engine = engine_for(place.world)
    engine.capabilities = place.part.needs | (STATISTICS - {"top"})  # asked for where they are told
    batch, _ = rolled(place, draws_of(place, 4, 2), engine=engine)
    assert batch.size("P") == 2


OPTIONS = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 4, "min_p": 0.01, "max_tokens": 9,
    "sampling_mask": "renormalise",
}  # fmt: skip


@every_part
def test_every_option_of_sampling_reaches_the_requests(entry, stages):
    """Of its own form and of the plain one; other temperatures are the strategy's own fields."""
    place = stages.of(entry)
    part = parts.replace(place.part, **OPTIONS)
    assert part.sampling() == OPTIONS
    own = [value for name, value in parts.fields_of(part).items() if name not in OPTIONS]
    draws = draws_of(place, 4, 2)
    for each in (part, substitutes.plain(part)):
        engine = engine_for(place.world, Recording)
        used = dataclasses.replace(place, use=Use(each))
        state = each.init() if hasattr(each, "init") else None
        batch, _ = rolled(used, draws, state, engine=engine)
        assert each.given or engine.asked
        for request in engine.asked:
            assert request.temperature in (0.7, 0.0, *own)
            assert request.max_tokens <= 9
            if request.temperature:  # a greedy one has nothing to cut
                assert request.rules[-3:] == part.rules()
        drawn = {r.seed for r in engine.asked if r.temperature == 0.7}  # one may be many requests
        assert len(drawn) * 2 >= len({r.seed for r in engine.asked})
        if not each.given:
            assert int(batch["length_B"].max()) <= 9
        check_kept(part, batch)


def check_kept(part, batch):
    """Of each token whose draw is known it is known what was kept, and it is among that."""
    if any(getattr(part, f"needs_{records}") for records in ("traces", "live", "agent")):
        return  # refused with this option
    check_known(batch)
    if KEPT_IDS in batch:
        number_T = batch[NUM_KEPT]
        for token in (number_T > 0).nonzero().flatten().tolist():
            first = int(batch[KEPT_AT][token])
            kept = batch[KEPT_IDS][first : first + int(number_T[token])]
            assert int(batch["id_T"][token]) in kept.tolist()


@every_part
def test_what_a_run_asks_of_it(entry, stages):
    part = stages.of(entry).part
    assert isinstance(part, SamplingFields)
    plain, playing = substitutes.plain(part), substitutes.playing(part)
    assert substitutes.plain(plain) is plain
    assert not plain.given
    assert {**plain.sampling(), **part.sampling()} == plain.sampling()
    given = isinstance(part, ReadAnswers)  # an environment's rows may have answers, too
    assert (playing is part) == (part.needs_environment or given)
    if playing is not None:
        assert playing.needs_environment or given
        assert playing.sampling() == part.sampling()
    assert parts.replace(part, max_tokens=7).new_tokens(9) == (7, 7)


class Failing(TableEngine):
    """Every third request fails, before its first token or behind two."""

    def _draw(self, id, row):
        if id % 3 == 1 and len(row.new) >= 2 * (id % 2):
            return self._failed(id, row, "made to fail")
        return super()._draw(id, row)


@every_part
def test_a_request_that_fails_does_not_take_the_others_with_it(entry, stages):
    """Rollouts that it was for are marked; all are there, and nothing of others is marked."""
    place = stages.of(entry)
    if place.part.given:
        return  # nothing is asked
    draws = draws_of(place, 4, 3, 4)
    engine = engine_for(place.world, Failing)
    batch, _ = rolled(place, draws, engine=engine)
    lost_B = batch["exit_B"] == Exit.ENGINE_LOST
    assert batch.size("P") == 3
    for group, draw in enumerate(draws):
        assert int((batch["group_B"] == group).sum()) >= fewest(place, draw)
    assert int(lost_B.sum()) < batch.size("B")
    spared = "samples_again" in parts.facts(place.use)  # another candidate may take its place
    assert spared or lost_B.any()
    assert place.world.services.sampling.failures
    place.world.services.sampling.failures.clear()
    whole, _ = rolled(place, draws)
    assert not (whole["exit_B"] == Exit.ENGINE_LOST).any()
