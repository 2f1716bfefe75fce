"""strop: reinforcement-learning post-training for language models, every idea a part.

    import strop

    run = strop.train("gspo", data=rows, reward=right, training_steps=100)
    run.metrics, run.evaluate(), run.sample("3,5,7:22="), run.report()

docs/PYTHON.md says what each of the names here takes and gives. They are loaded when they are asked
for, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

from strop._garbage import imported
from strop.errors import RunStopped, UserError

if TYPE_CHECKING:
    from strop.door.audit import audit
    from strop.door.compare import Comparison, compare, resume_comparison
    from strop.door.doctor import doctor
    from strop.door.export import export
    from strop.door.options import recipe
    from strop.door.pages import inspect, watch
    from strop.door.run import Run, Step
    from strop.door.scores import Evaluation, evaluate, sample
    from strop.door.sweep import sweep
    from strop.door.train import resume, train

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Evaluation",
    "Run",
    "RunStopped",
    "Step",
    "UserError",
    "audit",
    "compare",
    "doctor",
    "evaluate",
    "export",
    "inspect",
    "recipe",
    "resume",
    "resume_comparison",
    "sample",
    "sweep",
    "train",
    "watch",
]

_PLACES = {
    "Comparison": "strop.door.compare",
    "Evaluation": "strop.door.scores",
    "Run": "strop.door.run",
    "Step": "strop.door.run",
    "audit": "strop.door.audit",
    "compare": "strop.door.compare",
    "doctor": "strop.door.doctor",
    "evaluate": "strop.door.scores",
    "export": "strop.door.export",
    "inspect": "strop.door.pages",
    "recipe": "strop.door.options",
    "resume": "strop.door.train",
    "resume_comparison": "strop.door.compare",
    "sample": "strop.door.scores",
    "sweep": "strop.door.sweep",
    "train": "strop.door.train",
    "watch": "strop.door.pages",
}


def __getattr__(name: str) -> Any:
    """What is asked for the first time (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module 'strop' has no attribute {name!r}")
    found = getattr(imported(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
