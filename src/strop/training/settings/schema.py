"""The JSON schema of a run's TOML file, for editors and for completion in a shell.

`strop/assets/run.schema.json` holds it, written by `tools/write_catalogue.py`.
"""

import json
from typing import Any

from strop.catalogue import catalogue
from strop.catalogue.seams import PLACE_OF, STAGES
from strop.engines.open import ENGINES, settings_of
from strop.training.settings.config import RunConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def run_schema() -> dict[str, Any]:
    """The schema: settings by section, the engines by their kind, stages and recipes by name."""
    made = RunConfig.model_json_schema()
    sections, properties = made["$defs"], made["properties"]
    del sections["EngineSettings"]
    kinds = {f"{kind.capitalize()}Engine": _engine(kind, sections) for kind in ENGINES}
    sections.update(kinds)
    properties["engine"] = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in kinds]}
    names = [entry.name for entry in catalogue.recipes()]
    for recipe in (properties["recipe"], sections["PhaseSettings"]["properties"]["recipe"]):
        recipe["examples"] = names
    for stages in (properties["stages"], sections["PhaseSettings"]["properties"]["stages"]):
        stages["properties"] = dict.fromkeys([*STAGES, *PLACE_OF], stages["additionalProperties"])
    _simplify(made)
    for section in properties.values():
        if "$ref" in section:
            section.pop("default", None)  # each setting has its own
    return {"$schema": DIALECT, "title": "A run of strop", **made}


def text() -> str:
    """The schema as a file holds it."""
    return json.dumps(run_schema(), indent=1, ensure_ascii=False) + "\n"


def _engine(kind: str, sections: dict[str, Any]) -> dict[str, Any]:
    """The section [engine] of one kind; what it refers to is added to `sections`."""
    own = settings_of(kind).model_json_schema()
    sections.update(own.pop("$defs", {}))
    description = own["properties"]["kind"]["description"]
    own["properties"]["kind"] = {"const": kind, "default": kind, "description": description}
    if kind != "local":  # the kind that holds where none is named
        own["required"] = ["kind"]
    return own


def _simplify(schema: Any) -> None:
    """Remove the titles that pydantic makes from names; accept one value for a list of one."""
    inner = schema.values() if isinstance(schema, dict) else schema
    for each in list(inner) if isinstance(schema, dict | list) else ():
        _simplify(each)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    for name, each in schema.get("properties", {}).items():
        if each.get("type") == "array" and isinstance(each.get("items"), dict):
            kept = {k: each.pop(k) for k in ("default", "description") if k in each}
            schema["properties"][name] = {**kept, "anyOf": [each, each["items"]]}
