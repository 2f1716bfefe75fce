"""Defines parts, how they make a method, and how a method is written.

Authors of parts and recipes write `from strop.method import Algorithm, Result, Use, require`. Files
inside strop import from the modules, so that each shows its dependencies.
"""

from typing import TYPE_CHECKING

from strop.support.faces import face

if TYPE_CHECKING:
    from strop.method.algorithm import Algorithm, Phase, Phases, Until
    from strop.method.charts import Curve, LineChart
    from strop.method.part import (
        Curated,
        Draw,
        Result,
        Selected,
        Term,
        Update,
        Use,
        require,
        require_one_of,
    )
    from strop.method.schedule import Constant, Cosine, Linear, Schedule
    from strop.method.services import (
        Episodes,
        Graded,
        Grading,
        Log,
        Sampling,
        Scoring,
        Services,
        Stores,
        Texts,
    )

__all__ = [
    "Algorithm",
    "Constant",
    "Cosine",
    "Curated",
    "Curve",
    "Draw",
    "Episodes",
    "Graded",
    "Grading",
    "LineChart",
    "Linear",
    "Log",
    "Phase",
    "Phases",
    "Result",
    "Sampling",
    "Schedule",
    "Scoring",
    "Selected",
    "Services",
    "Stores",
    "Term",
    "Texts",
    "Until",
    "Update",
    "Use",
    "require",
    "require_one_of",
]

_PLACES = {
    "strop.method.algorithm": ("Algorithm", "Phase", "Phases", "Until"),
    "strop.method.charts": ("Curve", "LineChart"),
    "strop.method.part": (
        "Curated",
        "Draw",
        "Result",
        "Selected",
        "Term",
        "Update",
        "Use",
        "require",
        "require_one_of",
    ),
    "strop.method.schedule": ("Constant", "Cosine", "Linear", "Schedule"),
    "strop.method.services": (
        "Episodes",
        "Graded",
        "Grading",
        "Log",
        "Sampling",
        "Scoring",
        "Services",
        "Stores",
        "Texts",
    ),
}

__getattr__, __dir__ = face(__name__, _PLACES)
