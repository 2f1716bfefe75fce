"""strop: reinforcement-learning post-training for language models; every idea is a part.

    import strop

    run = strop.train("gspo", data=rows, reward=right, training_steps=100)
    run.metrics, run.evaluate(), run.sample("3,5,7:22="), run.report()

docs/PYTHON.md describes each of the names here. They are loaded at their first access, so that
importing the package costs nothing.
"""

import sys
from typing import TYPE_CHECKING

from strop.support.about import VERSION
from strop.support.errors import RunStopped, UserError
from strop.support.faces import face
from strop.support.moved import OldNames

if TYPE_CHECKING:
    from strop.api.audit import audit
    from strop.api.compare import Comparison, compare, resume_comparison, sweep
    from strop.api.diff import diff
    from strop.api.doctor import doctor
    from strop.api.evaluate import Evaluation, evaluate, sample
    from strop.api.export import export
    from strop.api.options import recipe
    from strop.api.pages import inspect, watch
    from strop.api.reproduce import reproduce
    from strop.api.run import Run, Step
    from strop.api.sequence import sequence
    from strop.api.serve import serve, serve_policy
    from strop.api.train import resume, train
    from strop.traces.records import Rollout, TurnRecord

__version__ = VERSION
__all__ = [
    "Comparison",
    "Evaluation",
    "Rollout",
    "Run",
    "RunStopped",
    "Step",
    "TurnRecord",
    "UserError",
    "audit",
    "compare",
    "diff",
    "doctor",
    "evaluate",
    "export",
    "inspect",
    "recipe",
    "reproduce",
    "resume",
    "resume_comparison",
    "sample",
    "sequence",
    "serve",
    "serve_policy",
    "sweep",
    "train",
    "watch",
]

_PLACES = {
    "strop.api.audit": ("audit",),
    "strop.api.compare": ("Comparison", "compare", "resume_comparison", "sweep"),
    "strop.api.diff": ("diff",),
    "strop.api.doctor": ("doctor",),
    "strop.api.evaluate": ("Evaluation", "evaluate", "sample"),
    "strop.api.export": ("export",),
    "strop.api.options": ("recipe",),
    "strop.api.pages": ("inspect", "watch"),
    "strop.api.reproduce": ("reproduce",),
    "strop.api.run": ("Run", "Step"),
    "strop.api.sequence": ("sequence",),
    "strop.api.serve": ("serve", "serve_policy"),
    "strop.api.train": ("resume", "train"),
    "strop.traces.records": ("Rollout", "TurnRecord"),
}

# An import of a module's old name raises an error with the new name.
if not any(isinstance(each, OldNames) for each in sys.meta_path):
    sys.meta_path.append(OldNames())

__getattr__, __dir__ = face(__name__, _PLACES)
