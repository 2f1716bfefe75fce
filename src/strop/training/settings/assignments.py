"""Words `path=value`, and what they set in the plain values of a configuration."""

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strop.catalogue import peers
from strop.catalogue.seams import PLACE_OF, STAGES
from strop.method import reading, writing
from strop.method.schedule import Schedule
from strop.method.values import parse, value_of
from strop.support.errors import UserError, nearest, several
from strop.training.settings.config import RunConfig, section_classes, settings

ASSIGNMENT = re.compile(r"^[A-Za-z_][\w.]*\s*=")
OF_A_PHASE = ("until", "recipe")  # the settings of a phase beside stages and options
Assignments = Sequence[str | tuple[str, Any]]


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits words that name something (recipes, files) from those that assign a value."""
    assignments = [text for text in words if ASSIGNMENT.match(text)]
    return [text for text in words if not ASSIGNMENT.match(text)], assignments


def override(raw: dict[str, Any], assignments: Assignments) -> dict[str, Any]:
    """`raw` with `path=value` assignments: settings by their path, stages by their name
    (`advantage='subtract_group_mean | spread_evenly'`), the rest options of the method. A pair is
    path and value; a text in it is parsed, too, and any other object is the value itself.

    A stage that is set again loses its options in `raw`, with the parts that they belonged to.
    Raises UserError for assignments without a name or of unknown settings, all of them at once.
    """
    known, unknown = settings(), list[str]()
    result = {k: dict(v) if isinstance(v, dict) else v for k, v in raw.items()}
    for assignment in assignments:
        path, given = _parted(assignment)
        head, _, rest = path.partition(".")
        if head == "phases" and rest:
            _set_in_phase(result, rest, given)
            continue
        stage = path.removeprefix("stages.")
        if path not in known and reading.is_stage(stage):
            _set_stage(result, stage, given, raw)
            continue
        of_method = rest and head in (*STAGES, *reading.STAGE_ALIASES)
        if path not in known and not of_method:
            unknown.append(f"no option {path or assignment}{_hint(path, known)}")
            continue
        value = _read(path, given) if isinstance(given, str) else given
        if path in known and rest:
            result.setdefault(head, {})[rest] = value
        elif path in known:
            result[path] = value
        else:
            result.setdefault("algorithm", {})[path] = value
            _drop_from_phases(result, path)
    if unknown:
        raise several(unknown)
    return result


def _hint(path: str, known: Iterable[str]) -> str:
    """What to write in place of an unknown option."""
    if path in ("algorithm", "method"):
        return ": name the recipe alone, as in `strop train dapo`, or write recipe=dapo"
    sections = dict.fromkeys(name.partition(".")[0] for name in known if "." in name)
    return peers.hint(path, [*known, *PLACE_OF]) or (
        f": an option is SECTION.NAME, with a section of {', '.join(sections)}, or "
        "STAGE.NAME of the method; docs/NOTATION.md lists all"
    )


def _parted(assignment: str | tuple[str, Any]) -> tuple[str, Any]:
    """Path and value; blanks around the value count only where it is given by itself."""
    if not isinstance(assignment, str):
        return assignment
    path, _, given = assignment.partition("=")
    return path.strip(), given.strip()


def _text(given: object) -> str:
    """A value in the notation of the command line."""
    return given.strip() if isinstance(given, str) else writing.value_text(given)


def _read(path: str, text: str) -> Any:
    """The value of an option. A setting of type text gets it unparsed, and so does a schedule."""
    head, _, rest = path.partition(".")
    declared = RunConfig.model_fields[head].annotation if head in RunConfig.model_fields else None
    fields = [s.model_fields[rest] for s in section_classes(declared) if rest in s.model_fields]
    if declared is str or any(field.annotation is str for field in fields):
        return reading.value(text) if _is_quoted(text) else text
    value = reading.value(text)
    kinds = {typing.get_origin(field.annotation) for field in fields}
    if value == text and (dict in kinds or (tuple in kinds and text.startswith("["))):
        _check_brackets(path, text)
    return text if isinstance(value, Schedule) else value


def _check_brackets(path: str, text: str) -> None:
    """Raise UserError where a text that should be in brackets cannot be read."""
    try:
        value_of(parse(text), text)
    except UserError as error:
        form = "[a, b]" if text.startswith("[") else "{name: value}"
        raise UserError(
            f"{path}: {error}; in {form}, a text such as '/data/a.jsonl' is quoted"
        ) from error


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] and text[0] in "'\""


def _set_in_phase(raw: dict[str, Any], path: str, given: object) -> None:
    """Set `NAME.until`, `NAME.recipe`, a stage or an option of one phase. Raises UserError."""
    name, _, inside = path.partition(".")
    text = _text(given)
    phase = dict(raw.get("phases", {}).get(name, {}))
    inside = inside.removeprefix("stages.")
    if inside in OF_A_PHASE:
        phase[inside] = text
    elif reading.is_stage(inside):
        _set_stage(phase, inside, given, phase)
    elif "." in inside and inside.split(".")[0] in (*STAGES, *reading.STAGE_ALIASES):
        value = reading.value(text)
        option = text if isinstance(value, Schedule) else value
        phase["algorithm"] = {**phase.get("algorithm", {}), inside: option}
    else:
        raise UserError(
            f"no option phases.{path}{nearest(inside, [*OF_A_PHASE, *STAGES])}; phase {name} has "
            "until, recipe, stages and options such as sampling.num_rollouts"
        )
    raw["phases"] = {**raw.get("phases", {}), name: phase}


def _set_stage(raw: dict[str, Any], stage: str, given: object, before: Mapping[str, Any]) -> None:
    """Set a stage of the method, and so of all its phases, or of one phase, to a text or to a list
    of texts, one a part, as in a file.

    What `before` has in the stage, options, slots of terms, or it under another name, is removed
    with the parts that it belonged to. Quotes around the whole text are no part of it: behind a
    method of `strop compare` no shell has taken them off.
    """
    parts = given if isinstance(given, list | tuple) else ()
    text = reading.one_line(parts) if parts and set(map(type, parts)) == {str} else _text(given)
    if _is_quoted(text) and text[0] not in text[1:-1]:
        text = text[1:-1]
    raw["algorithm"] = _outside(raw.get("algorithm", {}), stage, before)
    old = before.get("stages", {})
    stages = {
        name: each
        for name, each in raw.get("stages", {}).items()
        if old.get(name) != each or not _is_in(name, stage)
    }
    raw["stages"] = {**stages, stage: text}
    phases = raw.get("phases", {})
    for name, phase in phases.items():
        kept = {k: v for k, v in phase.get("stages", {}).items() if not _is_in(k, stage)}
        options = _outside(phase.get("algorithm", {}), stage, phase)
        raw["phases"] = {**raw["phases"], name: {**phase, "stages": kept, "algorithm": options}}


def _is_in(name: str, stage: str) -> bool:
    """Whether `name` is the stage or slot, maybe by another name, or a slot of it, the terms."""
    place, other = (PLACE_OF.get(each, reading.full_name(each)) for each in (name, stage))
    slot = reading.full_name(name) not in STAGES
    return place == other or (slot and reading.full_name(stage) == "terms")


def _drop_from_phases(raw: dict[str, Any], path: str) -> None:
    """Remove an option that is set for all phases from the options of each phase."""
    for name, phase in raw.get("phases", {}).items():
        options = phase.get("algorithm", {})
        replaced = reading.options_of(path, options)
        kept = {k: v for k, v in options.items() if k not in replaced}
        raw["phases"] = {**raw["phases"], name: {**phase, "algorithm": kept}}


def _outside(options: Mapping[str, Any], stage: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those of `before` that lie in a stage or a slot."""
    old = before.get("algorithm", {})
    return {
        path: value
        for path, value in options.items()
        if path not in old or not reading.lies_in(path, stage)
    }
