"""A recipe's page: when to choose it, equation, drawing of its parts, parameters, evidence."""

import functools
import re
import sys
from pathlib import Path
from typing import Any

import write_atlas
import write_catalogue

from docsite import drawing
from docsite.known import DOCS, Known, boost, coded, facts, ranges, tables
from strop.cli import listing
from strop.method.cost import needs_of
from strop.support.tables import read_rows

sys.path.append(str(DOCS.parent / "benchmarks"))
import floor_settings

PEERS = "COMING_FROM_TRL_AND_VERL.md#strops-recipes-in-trl"
FLOOR = "../docs/evidence/every_recipe_learns.md"
table = write_catalogue.table


def page(name: str, known: Known) -> str:
    """The page in Markdown."""
    told: dict[str, Any] = listing.recipe_page(known.recipes[name], name)
    pieces = [
        _head(name, told, known),
        f'!!! tip "Choose it when"\n\n    {_sentence(told["choose_it_when"])}\n',
        "## Equation\n",
        known.of_recipe(name),
        "\n## Parts, stage by stage\n",
        _drawn(name, known),
        _differences(name, told, known),
        _run(name, told, known),
        _parameters(name, told, known),
        _source(told),
        _evidence(name),
        _hosts(name),
        _kin(name, known),
    ]
    return "\n".join(pieces)


def _head(name: str, told: dict[str, Any], known: Known) -> str:
    family = known.family(name)
    parent = told["parent"]
    costs = "; ".join(told["costs"]) or "none besides sampling and one update"
    needs = needs_of(known.composed[name])
    rows = "prompts and a reward" if "reward" in needs else "prompts"
    rows = "given answers" if family.name == "demonstrations" else rows
    rows = rows if "environment" not in needs else ""
    told_of = {
        "paper": f"[arXiv {told['arxiv']}](https://arxiv.org/abs/{told['arxiv']})",
        "family": f"[{family.title}](../families/{family.name}/index.md)",
        "parent": link(parent) if parent in known.recipes else parent,
        "status": f"[{told['status']}](../docs/METHODS.md)",
        "needs": ", ".join(filter(None, (rows, *sorted(needs - {"reward"})))),
        "cost": costs,
    }
    about = (told["in_short"] or told["title"]).replace('"', "'")
    return (
        f'---\ntitle: {name}\ndescription: "{about}"\n'
        f"search:\n  boost: {boost(name, known.recipes, 0.5)}\n---\n\n"
        f"# {name}\n\n{_sentence(told['title'])}\n{{ .lead }}\n\n"
        f"{facts(told_of)}"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def link(recipe: str) -> str:
    return f"[`{recipe}`]({recipe}.md)"


def _drawn(name: str, known: Known) -> str:
    parent = known.composed.get(known.recipes[name].line("Parent"))
    theirs = [algorithm for _, algorithm in drawing.phases(parent)] if parent else []
    pieces = []
    for phase, algorithm in drawing.phases(known.composed[name]):
        found = drawing.placed(algorithm, theirs)
        head = f"<h3>{phase}</h3>" if phase else ""
        pieces.append(f"<div>{head}{drawing.picture(found, known.parts)}</div>")
    words = known.recipes[name].line("Parent")
    key = (
        f'<p class="key"><i class="changed"></i> differs from {words} '
        f'<i class="same"></i> as there <i class="gone"></i> only there</p>'
        if parent
        else ""
    )
    return f'<div class="drawings" markdown="0" data-search-exclude>{"".join(pieces)}{key}</div>\n'


def _differences(name: str, told: dict[str, Any], known: Known) -> str:
    pieces = [f"\n**Differs from the parent:** {coded(told['differs_from_parent'])}.\n"]
    if told["differs_once"]:
        pieces.append(f"**Differs from it once:** {coded(told['differs_once'])}.\n")
    parent = known.composed.get(told["parent"])
    ours = known.composed[name]
    if parent is not None and len(drawing.phases(ours)) == len(drawing.phases(parent)) == 1:
        rows = [
            (f"`{key}`", _value(theirs), _value(mine))
            for key, (theirs, mine) in parent.differences(ours).items()
        ]
        if rows:
            pieces.append(table(("stage or option", told["parent"], name), rows))
    return "\n".join(pieces)


def _value(value: Any) -> str:
    texts = value if isinstance(value, list | tuple) else [value]
    links = [link for text in texts if text is not None for link in str(text).split(" | ")]
    return "<br>".join(f"`{link}`" for link in links if link) or "none"


def _run(name: str, told: dict[str, Any], known: Known) -> str:
    task = floor_settings.setting_of(name, Path()).task
    options = _floor().get(name, {}).get("options", "")
    own = {"corridor", "calculator", "kernel_timing"}
    given = f" data.task={task}" if task in own else ""
    python = f', data_task="{task}"' if task in own else ""
    if "teacher" in needs_of(known.composed[name]):
        given += " model.reference=TEACHER"
        python += ', model_reference="TEACHER"'
    note = ""
    if known.family(name).name == "demonstrations" and not given:
        note = "\nIt learns from [given answers](../docs/GIVEN_ANSWERS.md): add `--data FILE`.\n"
    elif options or task not in (*own, "countdown"):
        note = f"\nOn the small tasks it was [measured]({FLOOR}) on {task}"
        note += f", with `{options}`.\n" if options else ".\n"
    return (
        "## Run it { data-search-exclude }\n\n"
        f"```sh\nstrop train {name}{given}\nstrop recipes {name} --toml > run.toml"
        "   # every stage in a file, to change\n```\n\n"
        f'```python\nimport strop\n\nstrop.recipe("{name}")              # to look at and change\n'
        f'run = strop.train("{name}"{python})\nrun.plot()\n```\n{note}'
    )


def _parameters(name: str, told: dict[str, Any], known: Known) -> str:
    allowed: dict[str, str] = {}
    for _, algorithm in drawing.phases(known.composed[name]):
        for _, use in algorithm.uses():
            kind = type(use.part)
            for key, text in ranges(kind.__module__, kind.__name__).items():
                allowed.setdefault(key, text)
    rows = [
        (f"`{f['name']}`", f"`{f['default']}`", allowed.get(f["name"], ""), f["meaning"])
        for f in told["parameters"]
    ]
    if not rows:
        return ""
    text = "## Parameters\n\n" + table(("parameter", "default", "values", "meaning"), rows)
    return text + (f"\nWorth trying: {coded(told['try'])}.\n" if told["try"] else "")


def _source(told: dict[str, Any]) -> str:
    where = f", {told['where']}" if told["where"] else ""
    return (
        f"## Source\n\n{told['title']}. "
        f"[arXiv {told['arxiv']}](https://arxiv.org/abs/{told['arxiv']}){where}. "
        f"Code: {told['code']}.\n\n"
        f"**Differs from the paper:** {coded(told['differs_from_paper'])}.\n"
    )


@functools.cache
def _floor() -> dict[str, dict[str, str]]:
    return {row["recipe"]: row for row in read_rows(DOCS / "evidence/every_recipe_learns.csv")}


@functools.cache
def _atlas() -> dict[str, list[str]]:
    """What the atlas says of each recipe, a line for every regime."""
    found, regime = dict[str, list[str]](), ""
    for line in (DOCS / "ATLAS.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            regime = line[3:]
        elif len(cells) == len(write_atlas.HEAD) and cells[0].startswith("`"):
            of = dict(zip(write_atlas.HEAD, cells, strict=True))
            said = "" if of["verdict"] == "-" else f", {of['verdict']}"
            found.setdefault(of["recipe"].strip("`"), []).append(
                f"- [Atlas](../docs/ATLAS.md#{regime}), {regime}: pass@1 {of['pass@1']}, "
                f"{of['difference']} against `grpo`{said}; seeds: {of['seeds']}."
            )
    return found


def _hosts(name: str) -> str:
    """What TRL, verl and a server of Tinker's API accept of it, and why not the rest."""
    for heads, rows in tables("HOSTED.md"):
        if row := rows.get(f"`{name}`"):
            told = [f"- {'TRL and verl' if head == 'it' else head}: {coded(cell)}" for head, cell in
                    zip(heads, row, strict=True)]  # fmt: skip
            text = "\n".join(told)
            head = "## In TRL, verl and on Tinker's API { data-search-exclude }"
            return f"{head}\n\n{text}\n\n[How](../docs/{PEERS}).\n"
    return ""


@functools.cache
def _pages() -> dict[str, tuple[str, str]]:
    """The pages of evidence: title and text by file name."""
    skipped = ("every_recipe_learns", "growth", "gpu", "speed_of_parts")
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((DOCS / "evidence").glob("*.md"))
        if path.stem not in skipped
    }
    return {name: (text.splitlines()[0].lstrip("# "), text) for name, text in texts.items()}


def _evidence(name: str) -> str:
    pieces = ["## Evidence { data-search-exclude }\n", *_atlas().get(name, ())]
    if row := _floor().get(name):
        learns = "above" if row["learns"] == "yes" else "not above"
        options = f" (`{row['options']}`)" if row["options"] else ""
        pieces.append(
            f"- 60 steps on a small task, {row['task']}{options}: success {row['before']} before, "
            f"**{row['after']}** after, {learns} the floor of {row['floor']}. "
            f"[One seed; it does not rank methods]({FLOOR})."
        )
    for title, text in _pages().items():
        if re.search(rf"`{name}[`(]", text[1]):
            pieces.append(f"- [{text[0]}](../docs/evidence/{title})")
    for heads, rows in tables("AUDIT.md")[:2]:  # the third lists recipes that are not enumerated
        mine = {key: row for key, row in rows.items() if re.match(rf"`{name}[`( ]", key)}
        if mine:
            pieces.append("- By enumeration on a table policy ([its columns](../docs/AUDIT.md)):\n")
            pieces.append(table(("", *heads), [(key, *row) for key, row in mine.items()]))
    if len(pieces) == 1:
        pieces.append("Nothing was measured, except that its tests pass.")
    return "\n".join(pieces) + "\n"


def _kin(name: str, known: Known) -> str:
    parent, children = known.recipes[name].line("Parent"), known.children(name)
    lines = ["## Relatives { data-search-exclude }\n"]
    if parent in known.recipes:
        lines.append(f"- Parent: {link(parent)}")
    if children:
        lines.append(f"- Children: {', '.join(map(link, children))}")
    others = [e.name for e in known.families[known.family(name)] if e.name != name]
    lines.append(f"- Of the same family: {', '.join(map(link, others))}")
    lines.append("- [All on the map](../map.md)")
    return "\n".join(lines) + "\n"
