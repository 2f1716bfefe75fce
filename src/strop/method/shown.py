"""Shows a method to people and changes it by keywords, for `Algorithm` and `Phases`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, Self, TypeVar

from strop.catalogue.seams import STAGES
from strop.method import reading, writing
from strop.method.part import Term, Use, name_of
from strop.method.schedule import Schedule
from strop.support.errors import UserError

HEADS = frozenset((*STAGES, *reading.STAGE_ALIASES))
TABLE = "border-collapse: collapse; font-size: 13px"
CELL = "text-align: left; vertical-align: top; padding: 2px 14px 2px 0"
A = TypeVar("A", bound=reading.OnePhase)


class Section(NamedTuple):
    """One algorithm of a method: its phase and when that ends, both "" without phases."""

    name: str
    until: str
    algorithm: Any

    @property
    def text(self) -> str:
        """The phase in a few words: "broad until 200"."""
        return f"{self.name} until {self.until}" if self.until else self.name

    @property
    def heading(self) -> str:
        """The line above the phase's parts."""
        return f"phase {self.name}{f', until {self.until}' if self.until else ''}:"


class Shown:
    """Base of methods with one phase or several: how they are shown and changed."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """The method's algorithms, phase by phase."""
        raise NotImplementedError

    @property
    def algorithms(self) -> tuple[Any, ...]:
        """The algorithm of every phase."""
        raise NotImplementedError

    def each(self, change: Callable[[Any], Any]) -> Self:
        """The method with every algorithm changed."""
        raise NotImplementedError

    def paths(self) -> dict[str, Any]:
        """Every number and option by its full path."""
        raise NotImplementedError

    def with_knobs(self, knobs: Mapping[str, Any]) -> Self:
        """The method with values replaced along full paths; UserError if one is unknown."""
        raise NotImplementedError

    def replace(self, **options: Any) -> Self:
        """The method with parts of stages and options replaced, in the order given. Raises
        UserError.

        A keyword names a stage or slot (`bound="clip_both_sides"`, the parts as text or objects) or
        an option, with an underscore for the first dot (`loss_clip_high=0.3`) or with the dot
        itself (`**{"loss.clip_high": 0.3}`).
        """
        method = self
        for keyword, value in options.items():
            name = dotted(keyword, HEADS)
            if reading.is_stage(name):
                parts = as_notation(value)
                if isinstance(parts, list | tuple) and all(isinstance(x, str) for x in parts):
                    parts = reading.one_line(parts)
                if not isinstance(parts, str):
                    raise UserError(f"{name} is {parts!r}: give its parts as text or as objects")
                method = method.each(_with_stage(name, parts))
            else:
                read = reading.value(value) if isinstance(value, str) else value
                method = reading.override(method, name, read)
        return method

    def differences(self, other: "Shown") -> dict[str, tuple[Any, Any]]:
        """The stages whose parts and the options whose values differ, by name: this method's and
        the other's. None stands for a stage or phase that one of them does not have.
        """
        found: dict[str, tuple[Any, Any]] = {}
        ours, theirs = _stages(self), _stages(other)
        for name in dict.fromkeys((*ours, *theirs)):
            if (pair := (ours.get(name), theirs.get(name))) and pair[0] != pair[1]:
                found[name] = pair
        mine, its = self.paths(), other.paths()
        for path in mine:
            if path in its and mine[path] != its[path]:
                found[path] = (mine[path], its[path])
        return found

    def __repr__(self) -> str:
        """The stages that have parts, one line per part."""
        width = max(map(len, STAGES))
        lines = []
        for section in self.sections:
            lines += [section.heading] if section.name else []
            for stage, parts in _filled(section.algorithm):
                for number, part in enumerate(parts):
                    lines.append(f"{stage if number == 0 else '':{width}}  {part}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same as an HTML table, with the effect of each part."""
        return "".join(
            (f"<p><b>{escape(section.heading)}</b></p>" if section.name else "")
            + _table(section.algorithm)
            for section in self.sections
        )


def _with_stage(name: str, text: str) -> Callable[[A], A]:
    return lambda algorithm: reading.replace_stage(algorithm, name, text)


def dotted(keyword: str, heads: frozenset[str]) -> str:
    """Write `loss_clip_high` as `loss.clip_high`, where its first word is one of the heads."""
    head, _, rest = keyword.partition("_")
    return f"{head}.{rest}" if rest and "." not in keyword and head in heads else keyword


def as_notation(value: object) -> object:
    """Parts, terms and schedules, alone or in a list, also beside texts, as notation; other values
    unchanged.
    """
    if isinstance(value, Schedule):
        return writing.value_text(value)
    if _is_part(value):
        return _part_text(value)
    several = value if isinstance(value, list | tuple) else ()
    if any(map(_is_part, several)) and all(_is_part(x) or isinstance(x, str) for x in several):
        return " | ".join(x if isinstance(x, str) else _part_text(x) for x in several)
    return "none" if value is None else value


def _is_part(value: object) -> bool:
    made = hasattr(type(value), "__dataclass_fields__") and not isinstance(value, Schedule)
    return isinstance(value, Use | Term) or (made and callable(value))


def _part_text(part: object) -> str:
    if isinstance(part, Term):
        return writing.term_text(part)
    return writing.use_text(part if isinstance(part, Use) else Use(part))


def _table(algorithm: Any) -> str:
    rows = "".join(
        f'<tr><td style="{CELL}"><b>{stage if number == 0 else ""}</b></td>'
        f'<td style="{CELL}"><code>{escape(part)}</code></td>'
        f'<td style="{CELL}">{escape(effect)}</td></tr>'
        for stage, parts in _filled(algorithm)
        for number, (part, effect) in enumerate(zip(parts, _effects(algorithm, stage), strict=True))
    )
    return f'<table style="{TABLE}"><tbody>{rows}</tbody></table>'


def _stages(method: Shown) -> dict[str, str]:
    """The names of the parts of every stage."""
    names: dict[str, list[str]] = {}
    for section in method.sections:
        head = f"phases.{section.name}." if section.name else ""
        for path, use in section.algorithm.uses():
            place = path.rpartition(".")[0] if not path.startswith("terms.") else path
            names.setdefault(head + place, []).append(name_of(use.part))
    return {place: " | ".join(parts) for place, parts in names.items()}


def _filled(algorithm: Any) -> Iterator[tuple[str, Sequence[str]]]:
    return ((stage, parts) for stage, parts in writing.describe(algorithm).items() if parts)


def _effects(algorithm: Any, stage: str) -> list[str]:
    """The first line of every part's docstring, in the order of `describe`."""
    if stage == "terms":
        return ["; ".join(_effect(use) for _, use in term.uses()) for term in algorithm.terms]
    content = getattr(algorithm, stage)
    return [_effect(use) for use in ((content,) if isinstance(content, Use) else content)]


def _effect(use: Use) -> str:
    return (type(use.part).__doc__ or "").strip().partition("\n")[0]
