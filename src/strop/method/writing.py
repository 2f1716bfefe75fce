"""Writes algorithms as notation text; `notation` reads it back."""

import keyword
from collections.abc import Sequence
from typing import Any, Protocol

from strop.catalogue.seams import SINGLE, STAGES
from strop.method.part import Term, Use, name_of, usual_labels
from strop.method.schedule import SCHEDULES, Schedule
from strop.support.loading import name_to_load

Text = str | Sequence[str]


class Stages(Protocol):
    """Any object that has the stages of one algorithm as attributes."""

    @property
    def sampling(self) -> tuple[Use, ...]:
        """The first stage; `seams.STAGES` names all of them."""
        ...


def describe(algorithm: Stages) -> dict[str, list[str]]:
    """Every stage as notation, part by part or term by term; `compose` reads it back."""
    shown: dict[str, list[str]] = {}
    for stage in STAGES:
        content = getattr(algorithm, stage)
        if stage == "terms":
            shown[stage] = [term_text(term) for term in content]
        elif stage in SINGLE:
            shown[stage] = [use_text(content)] if content is not None else []
        else:
            usual = usual_labels(content)
            shown[stage] = [use_text(u, label) for u, label in zip(content, usual, strict=True)]
    return shown


def written(algorithm: Stages) -> dict[str, Text]:
    """Every stage as notation, as files hold it: one text, or a list of several texts."""
    shown = describe(algorithm)
    return {
        stage: texts if len(texts) > 1 else "".join(texts) or "none"
        for stage, texts in shown.items()
    }


def use_text(use: Use, usual_label: str = "") -> str:
    """The part with its renamed columns, and with its label where that is not the usual one."""
    text = part_text(use.part)
    if use.columns:
        inside = ", ".join(f"{_word_text(k)}: {_word_text(v)}" for k, v in use.columns)
        text += f"[{inside}]"
    usual = usual_label or name_of(use.part)
    return text if use.label == usual else f"{text} @ {_word_text(use.label)}"


def part_text(part: Any) -> str:
    """The part with the fields that differ from their defaults, `clip_both_sides(clip_low=0.1)`."""
    changed = {
        f: getattr(part, f) for f in type(part).__dataclass_fields__
        if getattr(part, f) != getattr(type(part)(), f)
    }  # fmt: skip
    inside = ", ".join(f"{k}={value_text(v)}" for k, v in changed.items())
    name = name_to_load(type(part))
    name = f'"{name}"' if ":" in name else name
    return name + (f"({inside})" if inside else "")


def value_text(item: object) -> str:
    """A field's value as notation: schedules as calls, the rest as literals."""
    for name, kind in SCHEDULES.items():
        if type(item) is kind:
            return f"{name}({', '.join(repr(v) for v in vars(item).values())})"
    return repr(item)


def term_text(term: Term) -> str:
    given = {slot: use_text(use) for slot, use in term.uses()}
    if term.coef != 1.0 or isinstance(term.coef, Schedule):
        given["coef"] = value_text(term.coef)
    if term.learner != "policy":
        given["learner"] = _word_text(term.learner)
    return f"{term.name}({', '.join(f'{key}={text}' for key, text in given.items())})"


def _word_text(word: str) -> str:
    """A column or label: bare where Python reads it as a name."""
    return word if word.isidentifier() and not keyword.iskeyword(word) else repr(word)
