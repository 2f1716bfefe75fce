"""Which parts of a chain run if only some columns are requested."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch.batch import Batch
from strop.method.part import Use
from strop.padded.names import parts_for
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly


@dataclass(frozen=True)
class HalveAll:
    """Reads the whole batch."""

    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, batch: Batch) -> Tensor:
        return batch["advantage_B"] / 2


MEAN, HALF, SPREAD = Use(SubtractGroupMean()), Use(HalveAll()), Use(SpreadEvenly())


def test_those_run_whose_columns_the_asked_one_rests_on():
    assert parts_for((MEAN, SPREAD), {"advantage_T"}) == (MEAN, SPREAD)
    assert parts_for((MEAN, SPREAD), {"advantage_B"}) == (MEAN,)
    assert parts_for((MEAN, SPREAD), {"return_T"}) == ()
    assert parts_for((SPREAD, MEAN, SPREAD), {"advantage_T"}) == (MEAN, SPREAD)


def test_all_before_one_that_reads_the_whole_batch_run():
    halved = (SPREAD, MEAN, HALF)
    assert parts_for((*halved, MEAN, SPREAD), {"advantage_T"}) == (*halved, MEAN, SPREAD)
    assert parts_for((*halved, SPREAD), {"advantage_B"}) == halved
    assert parts_for(halved, {"advantage_T"}) == (SPREAD,)
