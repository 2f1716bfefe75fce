"""Which columns a step of a method has to compute before its parts read them."""

from strop.batch.columns import REFRESHED, old_value, slow_value
from strop.catalogue.seams import STAGES
from strop.method import part as parts
from strop.method.algorithm import Algorithm


def wanted_columns(algorithm: Algorithm) -> frozenset[str]:
    """The columns to refresh: those that something reads, and the value of every critic's head.

    A lone update takes its own log-probabilities as the old ones, so ratios and objectives then
    need none; what is prepared before the update (corrections, averages, rates) still does.
    """
    lone = getattr(getattr(algorithm.plan, "part", None), "num_updates", None) == 1
    wanted = set(algorithm.reads(tuple(stage for stage in STAGES if stage != "terms")))
    for term in algorithm.terms:
        for slot, use in term.uses():
            columns = {read.column for read in parts.reads(use)}
            shortcut = lone and slot in ("ratio", "objective")
            wanted |= columns - {"logp_old_T"} if shortcut else columns
    values = set(algorithm.value_columns())
    copies = {copy(name) for name in values for copy in (old_value, slow_value)}
    return frozenset((wanted & (REFRESHED | copies)) | values)
