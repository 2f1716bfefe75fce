"""New places of modules that had another name before version 0.2, for importers of old names."""

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

# Old names, and their new places. Python looks for a package before its modules, so a package's
# line stands for all modules below it.
MOVED = {
    "strop.advantage": "strop.parts.advantage",
    "strop.algorithm": "strop.method.algorithm",
    "strop.check": "strop.method.check",
    "strop.columns": "strop.batch.columns",
    "strop.control": "strop.parts.control",
    "strop.curation": "strop.parts.curation",
    "strop.door": "strop.api",
    "strop.errors": "strop.support.errors",
    "strop.families": "strop.catalogue.families",
    "strop.kernel": "strop.training.learner.kernel",
    "strop.loss": "strop.parts.loss, its head strop.head",
    "strop.notation": "strop.method.notation, .reading and .writing",
    "strop.part": "strop.method.part",
    "strop.phases": "strop.method.algorithm",
    "strop.plan": "strop.parts.plan",
    "strop.probe": "strop.parts.probe",
    "strop.rate": "strop.parts.rate",
    "strop.reward": "strop.parts.reward",
    "strop.rollout": "strop.parts.rollout, its engines strop.engines",
    "strop.sampling": "strop.parts.sampling",
    "strop.schedule": "strop.method.schedule",
    "strop.seams": "strop.catalogue.seams",
    "strop.segments": "strop.batch.segments",
    "strop.selection": "strop.parts.selection",
    "strop.services": "strop.method.services",
    "strop.step": "strop.training.step",
    "strop.tasks": "strop.environments (Environment, Observation), .rewards, .data or .sandbox",
}


class OldNames(MetaPathFinder):
    """Refuses the old names, after every other finder has found nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Raise ImportError, which names the new place, for an old name."""
        if name in MOVED:
            raise ImportError(f"{name} is {MOVED[name]} since strop 0.2; see CHANGELOG.md")
