"""The benchmark of all parts offers the text functions that parts call, and batches with forks."""

import sys
from pathlib import Path

import pytest

from strop.method.services import Texts

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import parts as benchmark

# Functions about a run's prompts; parts that call them run before there is a batch.
NOT_OF_BATCHES = {"mixture"}


def test_texts_answer_what_parts_of_batches_ask():
    asked = {name for name in vars(Texts) if not name.startswith("_")} - NOT_OF_BATCHES
    assert asked <= set(dir(benchmark.Letters))


@pytest.mark.parametrize("scattered", [False, True])
def test_a_rollout_forks_from_one_of_its_group(scattered):
    columns = benchmark.tables(64, 4000, scattered)
    group_B, parent_B = columns["group_B"], columns["parent_B"]
    assert (group_B[parent_B] == group_B)[parent_B >= 0].all()
    assert group_B.bincount().tolist() == [benchmark.GROUP] * 4
    assert bool((group_B.diff() < 0).any()) == scattered
