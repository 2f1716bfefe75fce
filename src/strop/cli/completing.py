"""Completions that a shell offers for the start of a word: recipes, parts, options, values.

They are read from the sources and the shipped schema, so that no key press waits for torch.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from strop.assets import SCHEMA, SHIPPED
from strop.catalogue import catalogue
from strop.catalogue.entries import Entry
from strop.catalogue.seams import KINDS, PLACE_OF, SEAMS
from strop.rewards.source import BUILT_IN
from strop.tracking.base import TRACKERS

Offered = list[tuple[str, str]]  # words, each with a short description


def recipes(incomplete: str) -> Offered:
    """Recipes with their short descriptions."""
    return [
        (entry.name, entry.line("In short"))
        for entry in catalogue.recipes()
        if entry.name.startswith(incomplete)
    ]


def parts(incomplete: str) -> Offered:
    """Folders of parts, and the parts."""
    heads = dict.fromkeys(kind.partition("/")[0] for kind in KINDS)
    folders = [(name, "a folder of parts") for name in dict.fromkeys([*heads, *KINDS])]
    found = folders + [(entry.name, entry.summary) for entry in catalogue.parts()]
    return [each for each in found if each[0].startswith(incomplete)]


def options(incomplete: str) -> Offered:
    """`option=` for each setting and stage, options of parts after `stage.`, or values."""
    name, equals, value = incomplete.partition("=")
    if equals:
        return [
            (f"{name}={word}", meaning) for word, meaning in _values(name) if word.startswith(value)
        ]
    found = [(f"{path}=", meaning) for path, meaning in _settings().items()]
    head = name.partition(".")[0]
    if "." in name and (head in PLACE_OF or head in ("loss", "terms")):
        found += [(f"{head}.{field}=", meaning) for field, meaning in _fields(head).items()]
    return [each for each in found if each[0].startswith(incomplete)]


def methods(incomplete: str) -> Offered:
    """Recipes, and options."""
    return recipes(incomplete) + options(incomplete)


def words_of(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Offers these words."""
    known = tuple(words)
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def tasks(incomplete: str) -> list[str]:
    """Tasks that come with strop."""
    from strop.environments.base import built_in

    return words_of((*built_in(), "countdown", "worked_countdown"))(incomplete)


models, trackers = words_of(SHIPPED), words_of(TRACKERS)
rewards = words_of(BUILT_IN)


def _schema() -> dict[str, Any]:
    return json.loads(SCHEMA.read_text(encoding="utf-8"))


def _sections() -> Iterable[tuple[str, dict[str, Any]]]:
    """Every setting by its path, with its schema; those of all kinds of engine."""
    schema = _schema()
    for name, each in schema["properties"].items():
        places = [one["$ref"] for one in (each, *each.get("anyOf", ())) if "$ref" in one]
        if not places:
            yield name, each
        for place in places:
            for inner, meaning in schema["$defs"][place.rpartition("/")[2]]["properties"].items():
                yield f"{name}.{inner}", meaning


def _settings() -> dict[str, str]:
    whole = ("stages", "algorithm", "phases")
    found = {path: each.get("description", "") for path, each in _sections() if path not in whole}
    stages = _schema()["properties"]["stages"]["properties"]
    return {**found, **dict.fromkeys(stages, "parts of this stage")}


def _values(path: str) -> Offered:
    """The possible values of an option, where they are few, or the parts of a stage."""
    if path == "recipe":
        return recipes("")
    given = [each for name, each in _sections() if name == path]
    words = [word for each in given for word in _words(each)]
    if path in PLACE_OF:
        return [(entry.name, entry.summary) for entry in _parts_of(path)]
    return [(word, "") for word in dict.fromkeys(words)]


def _words(schema: dict[str, Any]) -> list[str]:
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if "const" in schema:
        return [schema["const"]]
    inner = [word for each in schema.get("anyOf", ()) for word in _words(each)]
    return [*schema.get("enum", ()), *inner]


def _fields(stage: str) -> dict[str, str]:
    """Fields of the parts of a stage, each described by the first part that has it."""
    found: dict[str, str] = {}
    for entry in _parts_of(stage):
        for field in entry.fields:
            found.setdefault(field.name, field.comment)
    return found


def _parts_of(stage: str) -> list[Entry]:
    """The parts that may stand at a stage or in a slot; for the whole loss, those of all slots."""
    whole = stage in ("loss", "terms")
    name = "" if whole else PLACE_OF[stage].name
    kinds = [
        seam.kind
        for seam in SEAMS
        if name in seam.places or (whole and seam.kind.startswith("loss/"))
    ]
    return [entry for kind in kinds for entry in catalogue.parts(kind)]
