"""Numbers of a step that samples in several rounds."""

import pytest

from strop.method.chains import Chains, generators
from strop.training.collect.here import Collector
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
