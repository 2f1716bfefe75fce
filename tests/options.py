"""Every option that a run can be given."""

import re

from strop import catalogue, notation
from strop.seams import CHAINS, SINGLE, SLOTS
from strop.training import config


def known_options() -> set[str]:
    """Settings, stages, and for each option of a recipe the shorter ways to write it."""
    stages = (*CHAINS, *SINGLE, *SLOTS)
    found = set(config.settings()) | {f"stages.{name}" for name in stages}
    for entry in catalogue.recipes():
        for path in notation.recipe(entry.name).paths():
            stage, *_, field = re.sub(r"^phases\.\w+\.", "", path).split(".")
            short = "loss" if stage == "terms" else stage
            found |= {path, f"{stage}.{field}", f"{short}.{field}"}
    return found
