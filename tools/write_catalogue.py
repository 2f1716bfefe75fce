"""Write the parts of the documentation that follow from the code.

    python tools/write_catalogue.py [--check]

The script writes src/strop/assets/run.schema.json, src/strop/api/keywords.pyi, docs/METHODS.md,
docs/methods/ (one page for each family), docs/PARTS.md, docs/HOSTED.md and docs/PADDED.md from
settings, recipes and parts; it removes pages of docs/methods/ that belong to no family. In
docs/NOTATION.md, docs/BATCH.md and docs/COMING_FROM_TRL_AND_VERL.md it replaces the tables between
`<!-- table: NAME -->` and `<!-- end -->`. With --check it writes nothing, and the exit code is 1 if
a file is out of date.
"""

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from strop.assets import SCHEMA
from strop.batch import columns
from strop.batch.batch import LEVELS, SIZES, level_of
from strop.batch.columns import Column
from strop.catalogue import catalogue, families, peers
from strop.catalogue.entries import Entry
from strop.catalogue.families import Family
from strop.catalogue.seams import KINDS
from strop.engines import open as engines
from strop.method import notation
from strop.method import part as parts
from strop.method.algorithm import Method
from strop.method.cost import costs
from strop.method.own import own_metrics
from strop.method.schedule import SCHEDULES
from strop.padded.compose import further_inputs, names_of, recipe_of
from strop.padded.names import STRUCTURE, Names, learning_parts, services_asked
from strop.padded.services import INSIDE, TEXTS, readers_of_texts
from strop.support.tables import markdown_table
from strop.training.settings import config, schema

DOCS = Path(__file__).parents[1] / "docs"
KEYWORDS = Path(__file__).parents[1] / "src/strop/api/keywords.pyi"
sys.path.insert(0, str(Path(__file__).parent))
import hosted_page  # noqa: E402
import write_keywords  # noqa: E402

INDEX_HEADER = """# Methods, by what they change

This table lists what you see in a run, or have, and recipes that name it under "choose it when",
which has the whole condition. Many of them are measured on small models in [ATLAS.md](ATLAS.md),
where some ended below `grpo`. Other conditions are found by `strop recipes WORD`.
"""
INDEX_FAMILIES = """\
The table of a family says for every recipe when to choose it. A name links to the family's page,
which has the equation, the parts stage by stage, differences from the paper, cost and what to try;
`strop recipes NAME` prints the same. The parts are listed in [PARTS.md](PARTS.md).
"""
INDEX_WORDS = """\
A recipe is described by its differences from its parent, which is named beside it; everything else
is as in the parent. The status is one of three. `exact`: the recipe follows the paper's equations,
except for the differences named. `partial`: something had to be inferred, which is named under
"differs from the paper". `abstract`: the recipe is based on a paper's abstract or description.
"Choose it when" follows from what a method does; it does not say that the method works better.
[evidence/](evidence/policy_on_small_tasks.md) has measurements for a few.

On a family's page "stages", like the table of a recipe, names those that differ from the parent's.
"Cost" is the work of a step besides sampling its rollouts and one update on them, with the default
parameters. "Metrics of its own" are logged by a run and show the recipe's own parts at work;
[METRICS.md](METRICS.md) explains them. A name in braces stands for any text.

Written by `python tools/write_catalogue.py` from the recipes' docstrings and compositions; change
those, not this file or the families' pages.
"""
# What is seen in a run, or at hand, and recipes whose "Choose it when" names it.
SYMPTOMS = {
    "few answers are right": ("dars", "xrpo", "ngrpo"),
    "pass@k has to rise, or not to fall": ("dars", "grpo_passk", "psr_nsr"),
    "many groups are all right or all wrong": ("dapo", "ngrpo", "vade"),
    "long answers": ("dapo", "gspo", "optimal_token_baseline", "arrol"),
    "answers grow long, or a few hold up every step": (
        "dr_grpo", "april_partial_rollout", "rollart",
    ),
    "entropy falls or drifts": ("dapo", "clip_cov", "adaptive_entropy_coef", "entropic", "steer"),
    "rollouts are some steps old": ("rollout_correction", "areal_decoupled_ppo", "bapo"),
    "mixtures of experts": ("gspo",),
    "several turns": ("gigpo", "trloo", "arpo", "epo"),
    "long episodes with rare success": ("dart", "igpo"),
    "a critic is wanted": ("gae", "turn_ppo", "archer"),
    "pairs of answers are at hand": ("dpo", "simpo"),
    "good answers or a stronger model's are at hand": ("sft", "luffy_shaping", "adhint"),
}  # fmt: skip
PAGE_NOTE = "[METHODS.md](../METHODS.md) lists all families and explains the words of this page.\n"
PARTS_HEADER = """# Parts, why each exists and which recipes use it

Written by `python tools/write_catalogue.py` from the parts' docstrings; change those, not
this file. `strop parts NAME` prints a part's equation, columns, fields and edge cases. "Recipes"
are those that use the part with their default parameters; a part without recipes can be used
through a parameter or the notation.

"Nearest part" names the most similar other part, and how the two differ or when they are equal.
That difference is the reason why the part exists.
"""

PADDED_HEADER = """# Recipes over padded tensors

This page lists the inputs of `strop.functional` for every recipe with its default parameters.
[BATCH.md](BATCH.md#padded-tensors) describes the functions' results, and names that all recipes
share. `strop.functional.inputs(recipe, call, params)` lists the inputs for other parameters.

Written by `python tools/write_catalogue.py` from the recipes and the records of columns; change
those, not this file.
"""
PADDED_TENSORS = """## Tensors

All recipes accept `rewards`, `groups` and `mask` for advantages; `advantages`, `groups` and `mask`
for a selection; `logp`, `logp_old`, `advantages` and `mask` for a loss; and `step` and
`total_steps` if something follows a schedule. The table leaves these out. Names in brackets are
optional. "turns" means `turn_ids`, `turn_end`, `turn_valid`, or `trajectories` with `turn_index` or
`steps`. Of names with "or", one is enough. Preference pairs are given as rows, or as `logp_chosen`,
`logp_rejected` and so on.
"""
PADDED_WORDS = """## Words of papers and of other code

Besides the names of columns, a recipe accepts these, as a tensor or in `params`.
"""
PADDED_STATES = """## What next_state carries

The table lists recipes whose parts learn from steps, or whose options a control moves; for all
other recipes next_state returns its input. Orders of draws and stores of rollouts belong to a run:
padded calls draw and store nothing. Tensors are listed as above, without `rewards`, `groups` and
`mask`.
"""
NOT_LISTED = {
    "rewards", "groups", "mask", "advantages", "logp", "logp_old", "logp_prox", "logp_start",
    "step", "total_steps", *STRUCTURE,
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Write the files that are out of date, or only name them; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    check = parser.parse_args(arguments).check
    pages = wanted()
    stale = {path: text for path, text in pages.items() if _now(path) != text}
    for path, text in stale.items():
        print(f"{'out of date' if check else 'wrote'}: {_place(path)}")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    extra = unwanted(pages)
    for path in extra:
        print(f"{'no family has' if check else 'removed'}: {_place(path)}")
        if not check:
            path.unlink()
    return int(bool((stale or extra) and check))


def _place(path: Path) -> Path:
    """A file's path relative to the repository's root."""
    root = DOCS.parent
    return path.relative_to(root if path.is_relative_to(root) else Path(__file__).parents[1])


def unwanted(pages: Collection[Path]) -> list[Path]:
    """Pages of families that no longer exist."""
    return [path for path in sorted((DOCS / "methods").glob("*.md")) if path not in pages]


def wanted() -> dict[Path, str]:
    """Every file that this script writes, with the text it should have."""
    found = {
        **methods(), DOCS / "PARTS.md": parts_page(), DOCS / "HOSTED.md": hosted_page.page(),
        DOCS / "PADDED.md": padded_page(),
    }  # fmt: skip
    for name in ("NOTATION.md", "BATCH.md", "COMING_FROM_TRL_AND_VERL.md"):
        path = DOCS / name
        text = _now(path)
        for table, make in TABLES.items():
            block = f"<!-- table: {table} -->\n{make()}\n<!-- end -->"
            pattern = rf"<!-- table: {table} -->.*?<!-- end -->"
            text = re.sub(pattern, lambda _, block=block: block, text, flags=re.S)
        found[path] = text
    found[SCHEMA] = schema.text()
    found[KEYWORDS] = write_keywords.stub()
    return found


def methods() -> dict[Path, str]:
    """METHODS.md and the page of each family."""
    entries = catalogue.recipes()
    composed = {entry.name: entry.load()() for entry in entries}
    groups = families.grouped(entries)
    pages = {entry.name: family.name for family, members in groups.items() for entry in members}
    found = {DOCS / "METHODS.md": _index(groups)}
    for family, members in groups.items():
        found[DOCS / f"methods/{family.name}.md"] = _page(family, members, composed, pages)
    return found


def _index(groups: dict[Family, list[Entry]]) -> str:
    """The text of METHODS.md."""
    contents = [(f"[{f.title}](#{_anchor(f.title)})", f.sentence) for f in groups]
    families_of = {e.name: family.name for family, members in groups.items() for e in members}
    symptoms = [
        (seen, ", ".join(f"[`{name}`](methods/{families_of[name]}.md#{name})" for name in names))
        for seen, names in SYMPTOMS.items()
    ]
    pieces = [
        INDEX_HEADER, table(("what you see or have", "recipes"), symptoms), INDEX_FAMILIES,
        table(("family", "what its recipes change"), contents), INDEX_WORDS,
    ]  # fmt: skip
    for family, members in groups.items():
        page = f"methods/{family.name}.md"
        rows = [
            (
                f"[`{e.name}`]({page}#{e.name})", e.arxiv, e.line("Parent"), e.line("Status"),
                e.line("Choose it when"),
            )
            for e in members
        ]  # fmt: skip
        pieces.append(
            f"## {family.title}\n\n{family.sentence} Details: [{page}]({page}).\n\n"
            + table(("recipe", "arXiv", "parent", "status", "choose it when"), rows)
        )
    return "\n".join(pieces)


def _page(
    family: Family, members: list[Entry], composed: dict[str, Method], pages: dict[str, str]
) -> str:
    """The text of a family's page: a table of its members, then a section for each."""
    rows = [
        (
            f"[`{e.name}`](#{e.name})", _link(e.line("Parent"), family, pages), e.line("In short"),
            seam(e, composed), cost(composed[e.name]),
        )
        for e in members
    ]  # fmt: skip
    return "\n".join(
        [
            f"# {family.title}\n\n{family.sentence}\n",
            table(("recipe", "parent", "in short", "stages", "cost"), rows),
            PAGE_NOTE,
            *(_section(entry, composed, _link(entry.line("Parent"), family, pages))
              for entry in members),
        ]
    )  # fmt: skip


def _link(recipe: str, here: Family, pages: dict[str, str]) -> str:
    """A recipe's name as a link, from the page of a family."""
    if recipe not in pages:
        return recipe
    page = "" if pages[recipe] == here.name else f"{pages[recipe]}.md"
    return f"[{recipe}]({page}#{recipe})"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def parts_page() -> str:
    """The text of PARTS.md."""
    composed = {entry.name: entry.load()() for entry in catalogue.recipes()}
    users = users_of(composed)
    pieces = [PARTS_HEADER]
    for folder in KINDS:
        entries = catalogue.parts(folder)
        rows = [
            (f"`{e.name}`", e.summary, e.line("Nearest part"), _users(users, e.name, len(composed)))
            for e in entries
        ]
        heads = ("part", "effect", "nearest part", "recipes")
        pieces.append(f"## {folder} ({len(entries)})\n\n{table(heads, rows)}")
    return "\n".join(pieces)


def users_of(composed: dict[str, Method]) -> dict[str, list[str]]:
    """The recipes that use a part, by the part's name."""
    users: dict[str, list[str]] = {}
    for recipe, algorithm in composed.items():
        for name in dict.fromkeys(parts.name_of(use.part) for _, use in algorithm.uses()):
            users.setdefault(name, []).append(recipe)
    return users


def _users(users: dict[str, list[str]], part: str, num_recipes: int) -> str:
    names = users.get(part, [])
    if len(names) > num_recipes // 2:
        return "all" if len(names) == num_recipes else f"{len(names)} of {num_recipes}"
    return ", ".join(sorted(names)) or "none"


def differing(entry: Entry, composed: dict[str, Method]) -> dict[str, tuple[Sequence[str], bool]]:
    """The parts of each stage that has parts, and whether they differ from the parent's."""
    parent = composed.get(entry.line("Parent"))
    theirs = notation.shown(parent) if parent else {}
    ours = notation.shown(composed[entry.name])
    return {
        stage: (texts, theirs.get(stage, theirs.get(stage_of(stage))) != texts)
        for stage, texts in ours.items()
    }


def stage_of(shown: str) -> str:
    """The stage of a row that may belong to one phase, as "selection (explore)"."""
    return shown.partition(" (")[0]


def seam(entry: Entry, composed: dict[str, Method]) -> str:
    if entry.line("Parent") not in composed:
        return "all"
    found = differing(entry, composed)
    stages = dict.fromkeys(stage_of(stage) for stage, (_, differs) in found.items() if differs)
    return ", ".join(stages) or "none"


def cost(algorithm: Method) -> str:
    return "; ".join(costs(algorithm)) or "none"


def _section(entry: Entry, composed: dict[str, Method], parent: str) -> str:
    """One recipe: its equation, its parts and the columns that they read."""
    algorithm = composed[entry.name]
    rows = [
        (stage, "<br>".join(f"`{text}`" for text in texts) or "none")
        for stage, (texts, differs) in differing(entry, composed).items()
        if differs and (texts or entry.line("Parent") in composed)
    ]
    reads = ", ".join(f"`{name}`" for name in sorted(algorithm.reads() - SIZES.keys()))
    own = own_metrics(algorithm, composed.get(entry.line("Parent")))
    logs = ", ".join(f"`{name}`" for name in own)
    needed = entry.line("Model")
    status = f"Status: {entry.line('Status')}."
    model = f" Trained on `{needed}` where no model is given." if needed else ""
    return "\n".join(
        [
            f"## {entry.name}\n",
            f"{entry.summary} arXiv [{entry.arxiv}](https://arxiv.org/abs/{entry.arxiv}). "
            f"Code: {entry.line('Code')}. Parent: {parent}. {status}{model}\n",
            f"- Choose it when {entry.line('Choose it when')}.",
            f"- Equation: `{entry.line('Equation')}`",
            f"- Differs from the parent: {entry.line('Differs from the parent')}.",
            *(
                f"- {label}: {once}."
                for label in ("Differs once", "In full once")
                if (once := entry.line(label))
            ),
            f"- Differs from the paper: {entry.line('Differs from the paper')}.",
            f"- Try: {entry.line('Try')}.\n",
            *([table(("stage", "parts"), rows)] if rows else []),
            f"Reads: {reads}. Cost: {cost(algorithm)}.\n",
            *([f"Metrics of its own: {logs}.\n"] if logs else []),
        ]
    )


def padded_page() -> str:
    """The text of docs/PADDED.md."""
    names = [entry.name for entry in catalogue.recipes()]
    calls = ("advantages", "selection", "policy_loss")
    inputs = [(f"`{name}`", *(_padded_tensors(name, call) for call in calls)) for name in names]
    words = [(f"`{name}`", *row) for name in names for row in _padded_words(name)]
    states = [(f"`{name}`", *row) for name in names if (row := _padded_state(name))]
    return "\n".join([
        PADDED_HEADER, PADDED_TENSORS, table(("recipe", *calls), inputs),
        PADDED_WORDS, table(("recipe", "word", "is"), words),
        PADDED_STATES, table(("recipe", "carried", "needs"), states),
    ])  # fmt: skip


def _padded_tensors(
    name: str, call: str, but: Collection[str] = (), also_must: Collection[str] = ()
) -> str:
    """The names that a call accepts; several names of one column are joined by "or"."""
    names = names_of(name)
    takes = names.inputs(call)
    found: dict[tuple[str, ...], bool] = {}
    for column in names.reads(call):
        alike = tuple(n for n in names.of(column) if n not in {*NOT_LISTED, *but})
        if alike:
            must = takes[alike[0]] or alike[0] in also_must
            found[alike] = found.get(alike, False) or must
    said = {n for alike in found for n in alike} | NOT_LISTED | {*but}
    further = [n for n in takes if n not in said and n not in names.fills]
    found |= dict.fromkeys(((n,) for n in (*further, *further_inputs(name, names, call))), False)
    words = [(" or ".join(f"`{n}`" for n in alike), must) for alike, must in found.items()]
    turns = ["turns"] if names.reads_turns(call) else []
    return ", ".join([*turns, *(word if must else f"[{word}]" for word, must in words)])


def _padded_words(name: str) -> Iterable[tuple[str, str]]:
    words = recipe_of(name).words
    for word in words.also:
        yield f"`{word}`", "the recipe"
    for word, own in words.parameters.items():
        if own is None:
            yield f"`{word}`", "not accepted: it means something else here"
        else:
            yield f"`{word}`", f"`{own}`" if isinstance(own, str) else f"`{own[0]}`, converted"
    for word, column in words.columns.items():
        yield f"`{word}`", f"the column `{column}`"
    for word, (usual, make) in words.tensors.items():
        yield f"`{word}`", f"`{usual}`, converted" if make else f"`{usual}`"
    for word, what in words.series.items():
        yield f"`{word}`", f"`{what}` of every step so far"
    for word in words.several:
        yield f"`{word}`", "several tensors in one"
    for word, (part, _) in words.factors.items():
        place = f", in place of `{part}`" if part else ""
        yield f"`{word}`", f"a factor on advantages{place}"
    for word in words.prepared:
        yield f"`{word}`", "a number or switch that sets a parameter of its own"
    for word, why in words.instead.items():
        yield f"`{word}`", f"not accepted: {why}"


def _padded_state(name: str) -> tuple[str, str] | None:
    """The parts that carry state to the next step, and their inputs; None when no part does."""
    names = names_of(name)
    algorithm = names.algorithm
    learnt = list(dict.fromkeys((path, use) for path, use, _ in learning_parts(algorithm)))
    if not learnt and not algorithm.control:
        return None
    carried = [parts.name_of(use.part) for _, use in learnt]
    carried += [parts.name_of(use.part) for use in algorithm.control]
    return ", ".join(f"`{part}`" for part in carried), _padded_needs(name, names)


def _padded_needs(name: str, names: Names) -> str:
    """What next_state needs besides rewards, groups and mask, or why it refuses."""
    hooked = learning_parts(names.algorithm)
    if any(path.startswith("rollout.") and hook == "observe" for path, _, hook in hooked):
        return f"refused: it learns from {INSIDE}"
    told = {
        names.of(column)[0]
        for use in readers_of_texts(names.algorithm)
        for column in parts.writes(use)
    }
    asking = [use for use in names.run_by("rewards") if services_asked(use)]  # columns answer them
    answers = {read.column for use in asking for read in parts.reads(use)}
    answers |= {column for use in asking for column in parts.writes(use)}
    must = {known for column in answers for known in names.of(column)[:1]}
    found = (
        [_padded_tensors(name, "next_state", told, must)] if hooked else ["`metrics` of the step"]
    )
    for path, use, _ in hooked:
        asked = services_asked(use) if path.startswith("sampling.") else frozenset()
        if asked == {TEXTS}:
            found.append("`texts`, the prompt of each row")
        elif asked:
            first = ", ".join(use.part.init())
            found.append(f"`state` with its results for all prompts ({first})")
    if hooked and names.algorithm.control:
        found.append("[`metrics`]")
    return "; ".join(text for text in found if text) or "-"


def settings_table() -> str:
    """Every setting outside the method, its default and meaning."""
    plain = config.RunConfig().model_dump(mode="json")
    for kind in engines.ENGINES:
        for name, value in engines.read({"kind": kind}).model_dump(mode="json").items():
            plain["engine"].setdefault(name, value)
    rows = []
    for path, meaning in config.settings().items():
        kinds = [f"`{kind}`" for kind in engines.kinds_with(path)]
        meaning += f" ({', '.join(kinds)})" if kinds else ""
        value: Any = plain
        for piece in path.split("."):
            value = value[piece]
        rows.append((f"`{path}`", f"`{_toml(value)}`", meaning))
    return table(("setting", "default", "meaning"), rows).rstrip()


def shipped_table() -> str:
    """The settings that have another default for both shipped models."""
    plain = config.RunConfig().model_dump(mode="json")
    rows = [
        (f"`{section}.{key}`", f"`{_toml(value)}`")
        for section, values in config.defaults("tiny").items()
        for key, value in values.items()
        if plain[section][key] != value
    ]
    return table(("setting", "default with `tiny` and `tiny-worked`"), rows).rstrip()


def schedules_table() -> str:
    """Every schedule with its fields and formula."""
    rows = []
    for name, kind in SCHEDULES.items():
        fields = ", ".join(kind.__dataclass_fields__)
        rows.append((f"`{name}({fields})`", (kind.__doc__ or "").strip().rstrip(".")))
    return table(("schedule", "value at `step` of `num_steps`"), rows).rstrip()


def columns_table() -> str:
    """Every standard column, by table."""
    heads = ("column", "table", "dtype", "unit", "written by", "padded calls", "meaning")
    kept = [c for c in columns.STANDARD if c.writer != "batch"]
    return table(heads, [_column(c, c.writer) for c in _by_table(kept)]).rstrip()


def declared_table() -> str:
    """Every column that a part declares, by table."""
    heads = ("column", "table", "dtype", "unit", "declared by", "padded calls", "meaning")
    own = [(c, e.name) for e in catalogue.parts() if e.declares for c in e.load().declares]
    by = {column.name: part for column, part in reversed(own)}
    kept = _by_table(dict(own))
    return table(heads, [_column(c, f"`{by[c.name]}`") for c in kept]).rstrip()


def derived_table() -> str:
    """The columns that are derived from others."""
    rows = [(f"`{c.name}`", c.meaning) for c in columns.STANDARD if c.writer == "batch"]
    return table(("column", "meaning"), rows).rstrip()


def _by_table(records: Iterable[Column]) -> list[Column]:
    return sorted(records, key=lambda c: ["T", "K", "B", "P", ""].index(level_of(c.name)))


def _column(column: Column, source: str) -> tuple[str, ...]:
    name = column.name
    if column.numbered:
        name = f"{name.removesuffix('_T')}_NUMBER_T"
    table = {"": "run", **LEVELS}[level_of(name)]
    door = ", ".join(f"`{one}`" for one in column.names)
    return (f"`{name}`", table, column.dtype, column.unit, source, door, column.meaning)


TABLES = {
    "settings": settings_table,
    "shipped": shipped_table,
    "schedules": schedules_table,
    "columns": columns_table,
    "declared": declared_table,
    "derived": derived_table,
    "peers' options": partial(peers.table, "options"),
    "peers' methods": partial(peers.table, "methods"),
}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    one_line = [[cell.replace("\n", " ") for cell in row] for row in rows]
    return markdown_table(heads, one_line) + "\n"


def _now(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
