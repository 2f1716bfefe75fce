"""Every strategy gives the batches that it gave when `golden_rollouts.json` was written.

    python tests/every_part/test_golden_rollouts.py     # rewrites the file, for an intended change

The engine has no model and samples in float64, so the tokens are the same on every machine.
"""

import dataclasses
import functools
import hashlib
import json
import random
import sys
from pathlib import Path

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from every import every
from fakes.engine import TableEngine
from staged import Stages, alike, entries
from test_rollout_strategies import draws_of, engine_for

from strop.engines.asynchronous import asynchronous
from strop.method import part as parts
from strop.parts.rollout.base import roll_out

# Options with which every strategy takes effect in such short answers.
OPTIONS = {
    "answer_with_skills": {"skill": r"(?P<name>\d)", "call": "{name}"},
    "branch_after_turns": {"initial": 2, "branching": (2, 0.6, 0.2)},
    "branch_at_critical_tokens": {"min_letters": 1},
    "explore_then_regenerate": {"keep": 2},
    "extend_answers_by_window": {"window": 2},
    "fork_at_close_calls": {"forks": (4, 0.01, 0.9), "windows": (2,), "similarity": (0.9, 0.9, 1)},
    "grow_segment_tree": {"branching": (2, 3, 2), "segment_tokens": 2},
    "leave_slow_groups_for_later": {"max_age": 2},
    "stop_sure_answers": {"detect_at": 3},
    "take_first_complete_groups": {"spare": 2, "max_age": 1},
}  # fmt: skip
WITH_SPARE = ("leave_slow_groups_for_later", "take_first_complete_groups")
KEPT = Path(__file__).with_name("golden_rollouts.json")
ENTRIES = entries("rollout")


def three_steps(place, kind=TableEngine):
    """What a strategy gives in three steps, its state carried on."""
    part = parts.replace(place.part, **OPTIONS.get(place.use.label, {}))
    place = dataclasses.replace(place, use=dataclasses.replace(place.use, part=part))
    state, found = part.init() if hasattr(part, "init") else None, []
    for step in (1, 2, 3):
        chains = place.chains(state, 5, step)
        draws = [*draws_of(place, 4, 2, 6)]
        if place.use.label in WITH_SPARE:  # one of three is put off
            draws[0] = draws[0]._replace(columns={"spare_B": True})
        engine = engine_for(place.world, kind, end=3.0)
        handed = {"draws": tuple(draws), "engine": asynchronous(engine)}
        strategy = chains.call("rollout", place.use, None, **handed).value
        rolled = roll_out(strategy, engine, place.world.services)
        found.append(rolled)
        state = rolled.state if rolled.state is not None else state
        for hook in ("observe", "update"):
            reads = parts.update_reads(place.use, hook)
            if hasattr(part, hook) and rolled.batch.columns.keys() >= set(reads):
                state = parts.update(place.use, rolled.batch, state, hook)
    return found


@functools.cache
def plain_steps(entry, stages):
    """Those of the plain engine, which two tests look at."""
    return three_steps(stages.of(entry))


def summary(rolled):
    """A digest of the whole numbers of a batch; sums of its log-probabilities; what was lost."""
    digest = hashlib.sha256()
    for name, column in sorted(rolled.batch.columns.items()):
        if not column.is_floating_point():
            digest.update(f"{name} {column.tolist()}".encode())
    logp = [rolled.batch[name].nan_to_num().sum().item()
            for name in ("logp_behavior_T", "logp_sampler_T") if name in rolled.batch]  # fmt: skip
    shown = {name: float(value) for name, value in sorted(rolled.metrics.items())}
    return [digest.hexdigest()[:16], int(rolled.batch["mask_T"].sum()), logp,
            rolled.num_discarded, shown]  # fmt: skip


@every("entry", ENTRIES)
def test_three_steps_are_those_that_were_kept(entry, stages):
    found = [summary(each) for each in plain_steps(entry, stages)]
    for new, old in zip(found, json.loads(KEPT.read_text())[entry.name], strict=True):
        assert new[:2] == old[:2]
        assert new[2] == pytest.approx(old[2], rel=1e-6, abs=1e-6)
        assert new[3] == old[3]
        assert new[4] == pytest.approx(old[4], abs=1e-5, nan_ok=True)


class Shuffled(TableEngine):
    """Tells what came of a step in another order each time."""

    def poll(self, seconds=None):
        events = super().poll(seconds)
        random.Random(self.num_steps).shuffle(events)
        return events


@every("entry", ENTRIES)
def test_the_order_in_which_a_step_is_told_changes_nothing(entry, stages):
    """What ends in one step of the engine is simultaneous."""
    shuffled = three_steps(stages.of(entry), Shuffled)
    for one, other in zip(plain_steps(entry, stages), shuffled, strict=True):
        assert one.num_discarded == other.num_discarded
        assert alike(one.batch, other.batch)


def write() -> None:
    import tempfile

    from short_runs import make_lab

    with tempfile.TemporaryDirectory() as folder:
        stages = Stages(make_lab(Path(folder)))
        try:
            golden = {e.name: [summary(r) for r in three_steps(stages.of(e))] for e in ENTRIES}
        finally:
            stages.close()
    KEPT.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write()
