"""docs/PADDED.md: what the padded door takes for every recipe, and what next_state carries."""

from collections.abc import Collection, Iterable, Sequence

from strop import catalogue
from strop import part as parts
from strop._padded_asked import INSIDE, TEXTS, readers
from strop._padded_chains import asks, learning
from strop._padded_compose import names_of, whole_call_names, words_called
from strop._padded_names import STRUCTURE, Names

HEADER = """# Recipes over padded tensors

What `strop.functional` takes for every recipe with its default parameters; what the functions give,
and names that all recipes share, stand in [BATCH.md](BATCH.md#padded-tensors).
`strop.functional.inputs(recipe, call, params)` says the same for other parameters.

Written by `python tools/write_catalogue.py` from the recipes and the records of columns; change
those, not this file.
"""
TENSORS = """## Tensors

Taken by all: `rewards`, `groups` and `mask` for advantages; `advantages`, `groups` and `mask` for a
selection; `logp`, `logp_old`, `advantages` and `mask` for a loss; `step` and `total_steps` where
something follows a schedule. They are left out below. What stands in brackets may be left out.
"turns": `turn_ids`, `turn_end`, `turn_valid`, or `trajectories` with `turn_index` or `steps`. Of
names with "or" one is enough. Preference pairs come as rows, or as `logp_chosen`, `logp_rejected`
and so on.
"""
WORDS = """## Words of papers and of other code

Beside the names of columns a recipe takes these, as a tensor or in `params`.
"""
STATES = """## What next_state carries

Recipes whose parts learn from steps or whose options a control moves; for all others it gives back
what it was given. Orders of draws and stores of rollouts are a run's own: at this door nothing is
drawn or stored. Tensors as above, beside `rewards`, `groups` and `mask`.
"""
NOT_LISTED = {
    "rewards", "groups", "mask", "advantages", "logp", "logp_old", "logp_prox", "logp_start",
    "step", "total_steps", *STRUCTURE,
}  # fmt: skip


def page() -> str:
    """The text of docs/PADDED.md."""
    names = [entry.name for entry in catalogue.recipes()]
    calls = ("advantages", "selection", "policy_loss")
    inputs = [(f"`{name}`", *(_taken(name, call) for call in calls)) for name in names]
    words = [(f"`{name}`", *row) for name in names for row in _words(name)]
    states = [(f"`{name}`", *row) for name in names if (row := _carried(name))]
    return "\n".join(
        [
            HEADER, TENSORS, *_table(("recipe", *calls), inputs), "",
            WORDS, *_table(("recipe", "word", "is"), words), "",
            STATES, *_table(("recipe", "carried", "needs"), states), "",
        ]
    )  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _taken(name: str, call: str, but: Collection[str] = (), also_must: Collection[str] = ()) -> str:
    """The names that a call takes, each column's with "or" between them."""
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
    found |= dict.fromkeys(((n,) for n in (*further, *whole_call_names(name, names, call))), False)
    words = [(" or ".join(f"`{n}`" for n in alike), must) for alike, must in found.items()]
    turns = ["turns"] if names.reads_turns(call) else []
    return ", ".join([*turns, *(word if must else f"[{word}]" for word, must in words)])


def _words(name: str) -> Iterable[tuple[str, str]]:
    words = words_called(name)
    for word in words.also:
        yield f"`{word}`", "the recipe"
    for word, own in words.parameters.items():
        if own is None:
            yield f"`{word}`", "not taken: it means something else here"
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
        yield f"`{word}`", f"not taken: {why}"


def _carried(name: str) -> tuple[str, str] | None:
    """The parts that carry something to the next step, and what they need; None where none does."""
    names = names_of(name)
    algorithm = names.algorithm
    learnt = list(dict.fromkeys((path, use) for path, use, _ in learning(algorithm)))
    if not learnt and not algorithm.control:
        return None
    carried = [parts.name_of(use.part) for _, use in learnt]
    carried += [parts.name_of(use.part) for use in algorithm.control]
    return ", ".join(f"`{part}`" for part in carried), _needed(name, names)


def _needed(name: str, names: Names) -> str:
    """What next_state needs beside rewards, groups and mask, or why it refuses."""
    hooked = learning(names.algorithm)
    if any(path.startswith("rollout.") and hook == "observe" for path, _, hook in hooked):
        return f"refused: it learns from {INSIDE}"
    told = {names.of(column)[0] for use in readers(names.algorithm) for column in parts.writes(use)}
    asking = [use for use in names.run_by("rewards") if asks(use)]  # answered by columns
    answers = {read.column for use in asking for read in parts.reads(use)}
    answers |= {column for use in asking for column in parts.writes(use)}
    must = {known for column in answers for known in names.of(column)[:1]}
    found = [_taken(name, "next_state", told, must)] if hooked else ["`metrics` of the step"]
    for path, use, _ in hooked:
        asked = asks(use) if path.startswith("sampling.") else frozenset()
        if asked == {TEXTS}:
            found.append("`texts`, the prompt of each row")
        elif asked:
            first = ", ".join(use.part.init())
            found.append(f"`state` with what it has made of all prompts ({first})")
    if hooked and names.algorithm.control:
        found.append("[`metrics`]")
    return "; ".join(text for text in found if text) or "-"
