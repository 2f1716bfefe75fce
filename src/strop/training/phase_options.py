"""What the command line sets, in the plain values of a configuration: in one phase, or in all."""

from collections.abc import Mapping
from typing import Any

from strop import notation
from strop.errors import UserError, nearest
from strop.schedule import Schedule
from strop.seams import STAGES

OWN = ("until", "recipe")


def set_in_one(raw: dict[str, Any], path: str, text: str) -> None:
    """Set `NAME.until`, `NAME.recipe`, a stage or an option of one phase. Raises UserError."""
    name, _, inside = path.partition(".")
    phase = dict(raw.get("phases", {}).get(name, {}))
    inside = inside.removeprefix("stages.")
    if inside in OWN:
        phase[inside] = text
    elif notation.is_stage(inside):
        set_stage(phase, inside, text, phase)
    elif "." in inside and inside.split(".")[0] in (*STAGES, *notation.STAGE_ALIASES):
        value = notation.value(text)
        given = text if isinstance(value, Schedule) else value
        phase["algorithm"] = {**phase.get("algorithm", {}), inside: given}
    else:
        raise UserError(
            f"no option phases.{path}{nearest(inside, [*OWN, *STAGES])}; phase {name} has until, "
            "recipe, stages and options such as sampling.num_rollouts"
        )
    raw["phases"] = {**raw.get("phases", {}), name: phase}


def set_stage(raw: dict[str, Any], stage: str, text: str, before: Mapping[str, Any]) -> None:
    """Give a stage, of the method and so of all its phases, or of one phase.

    The options of `before` that lie in it go with the parts that they belonged to.
    """
    raw["algorithm"] = _outside(raw.get("algorithm", {}), stage, before)
    raw["stages"] = {**raw.get("stages", {}), stage: text}
    phases = raw.get("phases", {})
    for name, phase in phases.items():
        stages = phase.get("stages", {})
        kept = {
            k: v for k, v in stages.items() if notation.full_name(k) != notation.full_name(stage)
        }
        options = _outside(phase.get("algorithm", {}), stage, phase)
        raw["phases"] = {**raw["phases"], name: {**phase, "stages": kept, "algorithm": options}}


def forget(raw: dict[str, Any], path: str) -> None:
    """Take an option that is given for all phases out of those of each."""
    for name, phase in raw.get("phases", {}).items():
        options = phase.get("algorithm", {})
        kept = {k: v for k, v in options.items() if not notation.may_be(k, path)}
        raw["phases"] = {**raw["phases"], name: {**phase, "algorithm": kept}}


def _outside(options: Mapping[str, Any], stage: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """The options but for those of `before` that lie in a stage, or in a slot."""
    old = before.get("algorithm", {})
    return {
        path: value
        for path, value in options.items()
        if path not in old or not notation.lies_in(path, stage)
    }
