"""`strop recipes` and `strop parts`: list recipes and parts from the source files.

Lists import neither torch nor any recipe; the page of one recipe composes it.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from strop.catalogue import catalogue, families
from strop.catalogue.entries import Entry, Field
from strop.catalogue.logged import logged_by
from strop.catalogue.seams import KINDS, SEAM_OF, SPECIAL
from strop.cli import completing, shown
from strop.support.errors import UserError, nearest

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
RECIPE_LINES = {
    "equation": "Equation",
    "differs_from_parent": "Differs from the parent",
    "differs_once": "Differs once",
    "in_full_once": "In full once",
    "differs_from_paper": "Differs from the paper",
    "model": "Model",
    "try": "Try",
}
STATUSES = ("exact", "partial", "abstract")
ASSIGNMENT = re.compile(r"[\w.]+\s*=")
Needs = list[str] | None


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="A recipe, also with parameters, such as grpo(beta=0.04), or words to search for; "
            "by default all are listed.",
            autocompletion=completing.recipes,
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Only those of one family (baselines, entropy, ...).")
    ] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those of one status: {', '.join(STATUSES)}.")
    ] = None,
    needs: Annotated[
        Needs,
        typer.Option(help="Only those that need a critic, reference, teacher or environment."),
    ] = None,
    without: Annotated[
        Needs, typer.Option(help="Only those that do not need it; both options are repeatable.")
    ] = None,
    as_json: Json = False,
    as_toml: Annotated[
        bool,
        typer.Option(
            "--toml",
            help="Print a file for `strop train --config`: the recipe's stages, with options "
            "of the method set, such as plan.num_minibatches=4.",
        ),
    ] = False,
) -> None:
    """List the published methods by family, search them, or show one with equation and parts.

    Searches names, titles, families, when to choose a recipe, and the parts that it brings.
    """
    options = [word for word in words or () if ASSIGNMENT.match(word)]
    text = " ".join(word for word in words or () if word not in options)
    text = catalogue.spelled(text)
    name = text.partition("(")[0].strip()
    named = catalogue.is_place(name) or name in {entry.name for entry in catalogue.recipes()}
    if options and not (named and as_toml):
        raise UserError(f"{options[0]} sets an option: it goes with a recipe's name and --toml")
    if named and not (family or status or needs or without):
        if as_toml:
            print(_file_of(text, options), end="")
            return
        page = recipe_page(catalogue.find("recipe", name), name, text)
        shown.as_json(page) if as_json else shown.recipe(page)
    elif as_toml:
        raise UserError("--toml prints one recipe's stages: give its name")
    else:
        found = _needing(_matching(text, family, status), needs or [], without or [])
        shown.as_json([_citation(e) for e in found]) if as_json else shown.recipes(found)


def _file_of(text: str, options: list[str]) -> str:
    """The configuration file of a method, stage by stage, without reference to its recipe."""
    import tomli_w

    from strop.api.options import combined
    from strop.method import notation, writing
    from strop.method.algorithm import Phases
    from strop.training.settings.config import settings

    given = combined(text, options, {}) if options else None
    method = given.build() if given is not None else notation.recipe(text)
    file: dict[str, Any] = {"recipe": ""}
    for path in (option.partition("=")[0].strip() for option in options):
        section, _, name = path.partition(".")
        if path in settings() and path != "recipe":  # of the run, not of the method
            value = getattr(given, section)
            file[section] = {**file.get(section, {}), name: getattr(value, name)} if name else value
    if isinstance(method, Phases):
        file["phases"] = {
            phase.name: ({"until": phase.until.text} if phase.until else {})
            | {"stages": writing.written(phase.algorithm)}
            for phase in method.phases
        }
    else:
        file["stages"] = writing.written(method)
    named = " ".join([text, *options])
    head = f"# {named}, stage by stage: change any, then strop train --config FILE\n"
    return head + tomli_w.dumps(file)


def _beginning(word: str) -> re.Pattern[str]:
    """A pattern that finds words with this prefix."""
    return re.compile(rf"(?<![a-z0-9]){re.escape(word)}")


def _matching(text: str, family: str | None, status: str | None) -> list[Entry]:
    """Recipes of a family and status that have words with these prefixes. Raises UserError."""
    if family:
        families.find(family)
    if status and status not in STATUSES:
        near = nearest(status, STATUSES)
        raise UserError(f"no status {status!r}{near}; they are {', '.join(STATUSES)}")
    starts = [_beginning(word) for word in text.lower().split()]
    entries = [
        e for e in catalogue.recipes() if all(start.search(_search_text(e)) for start in starts)
    ]
    if not entries:
        catalogue.find("recipe", text)  # raises, with the nearest names
    found = [
        e
        for e in entries
        if family in (None, e.line("Family")) and status in (None, e.line("Status"))
    ]
    if not found:
        asked = {"words": text, "family": family, "status": status}
        both = ", ".join(f"{key} {value!r}" for key, value in asked.items() if value)
        raise UserError(f"no recipe has all of: {both}; leave one out")
    return found


def _needing(entries: list[Entry], needs: list[str], without: list[str]) -> list[Entry]:
    """The recipes with all of `needs` and none of `without`. Raises UserError."""
    if not (needs or without):
        return entries
    from strop.method import notation  # composing imports the parts, and so torch
    from strop.method.cost import NEEDS, needs_of

    for word in (*needs, *without):
        if word not in NEEDS:
            near = nearest(word, NEEDS)
            raise UserError(f"no need {word!r}{near}; a recipe may need {', '.join(NEEDS)}")
    wanted, refused = set(needs), set(without)
    made = catalogue.of_each(entries, lambda e: needs_of(notation.build_recipe(e.name, {})))
    found = [e for e, has in made.items() if wanted <= has and not refused & has]
    if not found:
        raise UserError("--needs and --without leave none of these recipes: leave one out")
    return found


def _search_text(entry: Entry) -> str:
    """The text of a recipe that a search reads, in lower case."""
    labels = ("Family", "In short", "Choose it when")
    own = (entry.name, entry.summary, *map(entry.line, labels), *entry.brings)
    return "\n".join(own).lower()


def parts(
    folder_or_name: Annotated[
        str | None,
        typer.Argument(
            help="A folder of parts (advantage, loss/bound), a part, or a word to search for.",
            autocompletion=completing.parts,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List all parts, those of a folder, or those with a word in name or first sentence; or show
    one part with its equation, columns, source and fields.
    """
    if folder_or_name is None or _is_folder(folder_or_name):
        listed = [*catalogue.parts((folder_or_name or "").strip("/"))]
    elif not (listed := _parts_with(folder_or_name)):
        page = part_page(_find_part(folder_or_name))
        shown.as_json(page) if as_json else shown.part(page)
        return
    found = [_part_line(entry) for entry in listed]
    shown.as_json(found) if as_json else shown.parts(found)


def _parts_with(word: str) -> list[Entry]:
    """The parts whose name or first sentence has a word with this prefix. None is returned for a
    recipe's name and for joined words, which may be a misspelled name.
    """
    known = {entry.name for entry in catalogue.recipes()}
    if not word.isalnum() or word in known:
        return []
    start = _beginning(word.lower())
    return [e for e in catalogue.parts() if start.search(f"{e.name}\n{e.summary}".lower())]


def _is_folder(text: str) -> bool:
    text = text.strip("/")
    return any(folder == text or folder.startswith(text + "/") for folder in KINDS)


def _find_part(name: str) -> Entry:
    if catalogue.is_place(name):
        return catalogue.find("part", name)
    entries = {entry.name: entry for entry in catalogue.parts()}
    if name in entries:
        return entries[name]
    if name in {entry.name for entry in catalogue.recipes()}:
        raise UserError(f"{name} is a recipe; see `strop recipes {name}`")
    folders = {folder.split("/")[0] for folder in KINDS} | set(KINDS)
    raise UserError(
        f"no part or folder {name!r}{nearest(name, [*entries, *sorted(folders)])}; "
        "`strop parts` lists all of them"
    )


# -- the description of an entry, as plain data ----------------------------------------------------


def _place(doc: str) -> str:
    """The place of a recipe in its paper: the text after the paper's number in its sentence."""
    found = re.search(r"arXiv \d{4}\.\d{4,5}, (.+?)\.\s+(?:[A-Z][a-z]+:|\Z)", doc, re.S)
    return " ".join(found.group(1).split()) if found else ""


def _citation(entry: Entry) -> dict[str, str]:
    return {
        "name": entry.name,
        "title": entry.summary.rstrip("."),
        "arxiv": entry.arxiv,
        "status": entry.line("Status"),
        "parent": entry.line("Parent"),
        "family": entry.line("Family"),
        "in_short": entry.line("In short"),
        "choose_it_when": entry.line("Choose it when"),
    }


# Parameters that are not fields of a part, in the words of VOCABULARY.
COMMON = {
    "aggregation": "How token losses become one number.",
    "beta": "Weight of the divergence from the reference policy; 0: no reference.",
    "normalize_std": "Divide by the group's standard deviation.",
    "refill": "Sample more prompts until enough groups have answers of different outcome.",
    "length": "Constant that sums are divided by, tokens; 0: the most tokens of an answer.",
}


def _fields(fields: Iterable[Field]) -> list[dict[str, str]]:
    return [
        {"name": f.name, "type": f.annotation, "default": f.default, "meaning": f.comment}
        for f in fields
    ]


def recipe_page(entry: Entry, name: str, text: str = "") -> dict[str, Any]:
    """The full description of a recipe. text: its line with the parameters that are not default."""
    from strop.comparison.claims import summaries
    from strop.method import notation, writing  # composing imports the parts, and so torch
    from strop.method.cost import costs
    from strop.method.own import own_metrics

    lines = {key: entry.line(label) for key, label in RECIPE_LINES.items()}
    function = entry.load()
    algorithm = notation.build_recipe(name, notation.named(text)[1] if text else {})
    parent = entry.line("Parent")
    known = parent in {other.name for other in catalogue.recipes()}
    theirs = notation.build_recipe(parent, {}) if known else None
    meanings = _meanings(algorithm)
    regime = entry.regime  # the setting in which it differs from its parent
    stages = {stage: texts for stage, texts in notation.shown(algorithm).items() if texts}
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    return {
        **_citation(entry),
        "where": _place(entry.doc),
        "code": entry.line("Code"),
        **lines,
        "regime": None if regime is None else {**vars(regime), "words": list(regime.words)},
        "stages": stages,
        "costs": list(costs(algorithm)),
        "metrics": list(own_metrics(algorithm, theirs)),
        "claims": summaries(name),
        "parameters": [
            {
                **f,
                "default": writing.value_text(defaults[f["name"]]),
                "meaning": f["meaning"] or meanings.get(f["name"], ""),
            }
            for f in _fields(entry.fields)
        ],
    }


def _meanings(algorithm: Any) -> dict[str, str]:
    """Meanings of recipe parameters: the common ones, else the comment of the field they set."""
    from strop.method.own import entry_of
    from strop.method.part import name_of

    found = dict(COMMON)
    for _, use in algorithm.uses():
        entry, name = entry_of(use.part), name_of(use.part)
        for field in entry.fields if entry is not None else ():
            found.setdefault(field.name, f"{field.comment.split(' Default:')[0]} ({name})")
    return found


def _part_line(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "folder": entry.folder,
        "effect": entry.summary,
        "fields": {field.name: field.default for field in entry.fields},
    }


def part_page(entry: Entry) -> dict[str, Any]:
    """The full description of a part."""
    equation = [line.strip() for line in entry.doc.splitlines() if line.startswith("    ")]
    seam = SEAM_OF.get(entry.folder)
    return {
        **_part_line(entry),
        "equation": "\n".join(equation),
        "reads": _columns(entry, "Reads", (n for n in entry.reads if n not in SPECIAL)),
        "writes": _columns(entry, "Writes", entry.writes) or (seam.returns if seam else ""),
        **{key: entry.line(label) for key, label in shown.DOC_LINES.items()},
        "metrics": list(logged_by(entry)),
        "fields": _fields(entry.fields),
    }


def _columns(entry: Entry, label: str, columns: Iterable[str]) -> str:
    """The docstring's line if it names every column of the call or class, else the columns."""
    names, line = list(columns), entry.line(label)
    return line if line and all(name in line for name in names) else ", ".join(names)
