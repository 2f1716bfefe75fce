"""All options of a run."""

import re

from strop.catalogue import catalogue
from strop.catalogue.seams import CHAINS, SINGLE, SLOTS
from strop.method import notation
from strop.training.settings import config


def known_options() -> set[str]:
    """Settings, stages, and for each option of a recipe the shorter ways to write it."""
    stages = (*CHAINS, *SINGLE, *SLOTS)
    found = set(config.settings()) | {f"stages.{name}" for name in stages}
    for entry in catalogue.recipes():
        for path in notation.recipe(entry.name).paths():
            inside = re.sub(r"^phases\.\w+\.", "", path)
            found.add(path)
            if "." not in inside:  # when a phase is over
                continue
            stage, *_, field = inside.split(".")
            short = "loss" if stage == "terms" else stage
            found |= {f"{stage}.{field}", f"{short}.{field}"}
    return found
