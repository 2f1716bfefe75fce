"""Numbers of a step that samples in several rounds."""

import math
from types import SimpleNamespace

import pytest
import torch
from builders import flat_batch

from strop.method.chains import Chains, generators
from strop.method.part import Curated, Draw
from strop.training.collect.here import Collector, _logged
from strop.training.learner.step_metrics import Clock


def test_counts_are_added_up_over_the_rounds_and_means_averaged_by_their_rollouts():
    collector = Collector(None, Chains(generators(0, 1)), Clock(), {})
    collector.add_counts({"repair/tried": 2, "retry/base": 1.0}, 4)
    collector.add_counts({"repair/tried": 3, "retry/base": 4.0, "retry/better": 1}, 8)
    assert collector.chains.metrics == {
        "repair/tried": 5,
        "retry/base": pytest.approx(3.0),  # (4 * 1 + 8 * 4) / 12
        "retry/better": 1,
        "data/rollouts_sampled": 12,
    }


def test_what_parts_drop_for_one_reason_is_counted_together():
    class Dropping(Chains):
        def with_metrics(self, metrics):
            return self

        def call(self, stage, use, batch, number):
            return SimpleNamespace(value=Curated(batch["reward_B"] > use.least, "low"))

    chains = Dropping(generators(0, 1))
    uses = [SimpleNamespace(least=least, label="drop") for least in (0.0, 2.0)]
    batch = flat_batch((1,) * 5, reward_B=[0.0, 1.0, 2.0, 3.0, 4.0])
    collector = Collector(None, chains, Clock(), {})
    kept, request = collector._curate(SimpleNamespace(curation=uses), batch, 0)
    assert (kept["reward_B"].tolist(), request) == ([3.0, 4.0], ())
    assert chains.metrics == {"data/dropped/low": 1 + 2}


def test_further_rollouts_of_a_group_are_rolled_out_like_its_first_ones():
    class Asking(Collector):
        def _received(self, algorithm, draws, rolled, number):
            return None

        def _curate(self, algorithm, batch, number):
            return batch, (Draw(3, 2, {"prior_B": 0.5}), Draw(3, 1, {"prompt_ids": (8,)}),
                           Draw(4, 1, draw=9))  # fmt: skip

        def _roll_out(self, algorithm, draws, number):
            raise StopIteration(draws)

    collector = Asking(None, Chains(generators(0, 1)), Clock(), {})
    stored = {"max_turns": 2, "prompt_ids": (7,), "ids": (1,), "prior_B": 0.25}
    collector.first[3, 0] = Draw(3, 4, stored)
    part = SimpleNamespace(carries=("max_turns",))
    algorithm = SimpleNamespace(sampling=[SimpleNamespace(part=part), SimpleNamespace(part=None)])
    with pytest.raises(StopIteration) as found:
        collector.finish(algorithm, (), [])
    assert [(draw.num_rollouts, draw.columns) for draw in found.value.args[0]] == [
        (2, {"prior_B": 0.5, "max_turns": 2, "prompt_ids": (7,)}),
        (1, {"max_turns": 2, "prompt_ids": (8,)}),
        (1, {}),  # the strategy has numbered this group
    ]


def test_rollouts_have_what_samplers_wrote_of_their_draws_and_null_where_they_wrote_nothing():
    batch = flat_batch((1,) * 3, (0, 0, 1), level_B=[0.5, 0.25, math.nan])
    batch = batch.set(rollout_uid_B=torch.tensor([7, 8, 9]))
    draws = [Draw(3, 2, probability=0.125), Draw(4, 1, why="new")]
    assert _logged(["level_B"], draws, batch) == {
        "draw/level": {7: 0.5, 8: 0.25, 9: None},
        "draw/why": {7: "", 8: "", 9: "new"},
        "draw/sample_probability": {7: 0.125, 8: 0.125, 9: None},
    }
    assert _logged([], [Draw(3, 2), Draw(4, 1)], batch) == {}
