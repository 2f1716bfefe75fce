"""The benchmark of all parts offers the text functions that parts call, and batches with forks."""

import sys
from pathlib import Path

import pytest

from strop.catalogue import catalogue
from strop.method.services import Texts

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import parts as benchmark
from parts import WITHOUT_BATCH

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


def test_parts_whose_fields_name_a_column_find_it():
    made = benchmark.Made(64, 4000, "cpu", scattered=False)
    kinds = [entry.load() for entry in catalogue.parts() if entry.folder not in WITHOUT_BATCH]
    found = [kind() for kind in kinds if hasattr(kind, "columns")]
    for part in found:
        if not benchmark.asks_outside(part):
            benchmark.job(part, made)()
    assert {type(part).__name__ for part in found} >= {"PullNucleusEntropy"}
