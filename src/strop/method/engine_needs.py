"""Which capabilities a method's parts need of the engine, and whether an engine has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strop.engines.base import Engine
from strop.method import part as parts
from strop.method.part import Use
from strop.support.errors import UserError

METHODS = ("start", "cancel", "poll", "load_weights")
# Columns that only an engine can fill, with the engine's name for the statistic.
STATISTIC_OF = {"entropy_behavior_T": "entropy", "logp_sampler_T": "logp_model"}


def check(uses: Iterable[tuple[str, Use]], engine: Engine, kind: str) -> None:
    """Raise UserError for the first of these (path, part) that needs more than the engine has.

    A part states in an attribute `needs` what its requests need; the columns that it reads imply
    the rest.
    """
    for path, use in uses:
        for capability, why in needs(use):
            if capability not in engine.capabilities:
                raise UserError(
                    f"{path} {why}, and the engine {kind!r} has no {capability!r} (it has "
                    f"{_listed(engine)}): take another engine.kind or leave the part out"
                )


def check_whole(engine: Engine, kind: str) -> None:
    """Raise UserError for an engine that lacks a method which every engine must define itself."""
    for name in METHODS:
        if getattr(type(engine), name, None) in (None, getattr(Engine, name)):
            raise UserError(
                f"the engine {kind!r}: {type(engine).__name__} has no method {name}: add it, as "
                "strop.engines.base.Engine describes it"
            )
    for name in ("capabilities", "version"):
        if not hasattr(engine, name):
            raise UserError(f"the engine {kind!r}: {type(engine).__name__} has no {name}: set it")


def check_trainable(engine: Engine, kind: str) -> None:
    """Raise UserError for an engine that cannot follow the weights that are trained."""
    if "weights" not in engine.capabilities:
        raise UserError(
            f"training gives the engine new weights, and the engine {kind!r} takes none (it has "
            f"{_listed(engine)}): use it with strop eval and strop sample, or take another "
            "engine.kind"
        )


def needs(use: Use) -> Iterator[tuple[str, str]]:
    """Every capability that a part needs, and why."""
    for capability in sorted(getattr(use.part, "needs", ())):
        why = " (sampling_mask=renormalise)" if capability == "kept" else ""
        yield capability, f"needs {capability!r}{why}"
    columns = [read.column for read in parts.reads(use)]
    for hook in ("observe", "update"):
        columns += parts.update_reads(use, hook)
    for column in columns:
        if column in STATISTIC_OF:
            yield STATISTIC_OF[column], f"reads {column}"


def _listed(engine: Engine) -> str:
    return ", ".join(sorted(engine.capabilities)) or "nothing more than to sample"
