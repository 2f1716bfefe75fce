"""The types of the keywords of `strop.train` and others, a stub for type checkers and editors.

`tools/write_catalogue.py` writes it: a keyword for each setting of the run, for each stage of the
method, and for each field of the parts that can stand in a stage.
"""

import re
from typing import Any

from strop.catalogue import catalogue
from strop.catalogue.seams import PLACE_OF, STAGES
from strop.method.reading import STAGE_ALIASES
from strop.training.settings.config import RunConfig, section_classes

HEADER = '''\
"""Written by `python tools/write_catalogue.py` from settings and parts; change those."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from strop.method.schedule import Schedule

Part = Any  # a part, several of them, or a line of notation
Number = float | str | Schedule
Whole = int | str | Schedule
Reward = str | Callable[..., Any]

class Options(TypedDict, total=False):
'''
KIND_OF_STAGE = {"probes": "probe", "terms": "loss", "loss": "loss", "rates": "rate"}
PARTS = {
    "int": "Whole", "float": "Number", "str": "str", "bool": "bool",
    "int | Schedule": "Whole", "float | Schedule": "Number",
}  # fmt: skip
SETTINGS = {
    "int": "int", "float": "float", "str": "str | Path", "bool": "bool", "float | str": "Number"
}  # fmt: skip


def stub() -> str:
    """The whole file."""
    types = {**_of_settings(), **_of_stages()}
    del types["reward"]  # the run's rewards, which are a parameter of their own
    types["evaluation_reward"] = "Reward | Sequence[Reward] | Mapping[str, Reward]"
    return HEADER + "".join(f"    {name}: {kind}\n" for name, kind in types.items())


def _of_settings() -> dict[str, str]:
    found = {}
    for name, field in RunConfig.model_fields.items():
        sections = section_classes(field.annotation)
        for section in sections:
            for inside, each in section.model_fields.items():
                found[f"{name}_{inside}"] = _setting(each.annotation)
        if not sections and field.annotation in (int, str):
            found[name] = _setting(field.annotation)
    found.pop("recipe")  # the first argument
    return found


def _setting(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"^<class '(.*)'>$", r"\1", text)
    if text.startswith("typing.Literal"):
        return text.removeprefix("typing.").replace("'", '"')
    if inside := re.match(r"tuple\[.*?(Literal\[.*?\]|str|int|float)", text):
        each = inside[1].replace("'", '"')
        return f"Sequence[{each}] | {'str' if each.startswith('Literal') else each}"
    return SETTINGS.get(text, "Any")


def _of_stages() -> dict[str, str]:
    """Stages and slots by name, and STAGE_FIELD for every part's field."""
    found = dict.fromkeys((*STAGES, *STAGE_ALIASES, *PLACE_OF), "Part")
    entries = [(e.folder.partition("/")[0], e.fields) for e in catalogue.parts()]
    for stage in (*STAGES, *STAGE_ALIASES):
        kind = KIND_OF_STAGE.get(stage, stage)
        fields: dict[str, set[str]] = {}
        for folder, own in entries:
            for field in own if folder == kind else ():
                fields.setdefault(field.name, set()).add(PARTS.get(field.annotation, "Any"))
        for name, kinds in sorted(fields.items()):
            kind = "Any" if "Any" in kinds else " | ".join(sorted(kinds))
            found.setdefault(f"{stage}_{name}", kind)
    return found
