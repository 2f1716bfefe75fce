"""`strop.diff`: whether two runs are the same, and if not, where they diverge and why."""

from pathlib import Path

from strop.api.arguments import checked
from strop.api.folders import HasFolder, folder_of
from strop.diagnosis.difference import Difference, difference


@checked
def diff(first: str | Path | HasFolder, second: str | Path | HasFolder) -> Difference:
    """Compare the files of two runs' folders bit for bit, except for times.

    Printed, the result says whether they are the same, and if not the first step, its stage, its
    columns and the first token in which they diverge, and the settings, data, versions and
    machines in which they differ; `same`, `step`, `stage`, `metrics`, `columns` and `causes` hold
    this.
    Raises UserError for arguments that are not runs, and for runs without a common step.
    """
    return difference(folder_of(first), folder_of(second))
