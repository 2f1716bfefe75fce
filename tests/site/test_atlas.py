"""The atlas: missing runs, pairs, a fit, and the page, which follows from its rows."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docsite.known import Known

from strop.support.tables import read_rows

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import atlas  # noqa: E402
import atlas_numbers  # noqa: E402
import write_atlas  # noqa: E402


def row(recipe: str, seed: int, machine: str, score: float, **other: str) -> dict[str, str]:
    return {
        "recipe": recipe, "words": recipe, "baseline": "grpo", "seed": str(seed),
        "machine": machine, "fingerprint": "f", "error": "", "pass@1": str(score), **other,
    }  # fmt: skip


def test_the_page_is_what_the_rows_give(known: Known) -> None:
    assert write_atlas.PAGE.read_text(encoding="utf-8") == write_atlas.page(known)
    rows = read_rows(atlas.ROWS / "four.csv")
    assert {(r["recipe"], r["seed"]) for r in rows} >= {("grpo", "0"), ("dapo", "1")}
    assert set(rows[0]) == set(atlas.HEAD)


def test_what_is_missing_goes_seed_by_seed_and_a_base_stands_on_the_same_machine() -> None:
    none: Any = None
    cells = [atlas.Cell(name, name, "grpo", none, "f", "tiny") for name in ("grpo", "a", "b")]

    def left(rows: list[dict[str, str]], again: bool = False, stale: bool = False) -> list[str]:
        found = atlas.missing(cells, 2, rows, "here", again, stale)
        return [f"{cell.recipe}{seed}" for cell, seed in found]

    assert left([]) == ["grpo0", "a0", "b0", "grpo1", "a1", "b1"]
    elsewhere = [row("grpo", 0, "there", 0.1), row("a", 0, "there", 0.2)]
    assert left(elsewhere) == ["grpo0", "b0", "grpo1", "a1", "b1"]
    failed = [*elsewhere, row("b", 0, "there", 0, error="no")]
    assert left(failed) == ["grpo1", "a1", "b1"]
    assert left(failed, again=True)[:2] == ["grpo0", "b0"]
    old = [dict(each, fingerprint="old") for each in elsewhere]
    assert left(old)[:2] == ["grpo0", "a0"]
    assert "a0" not in left(old, stale=True)


def test_a_pair_is_of_one_machine_and_of_the_newest_settings() -> None:
    rows = [
        row("grpo", 0, "m", 0.5), row("a", 0, "m", 0.7, fingerprint="old"), row("a", 0, "n", 0.9),
        row("a", 1, "m", 0.8), row("grpo", 1, "m", 0.6), row("a", 2, "m", 0, error="no"),
    ]  # fmt: skip
    (pair,) = atlas_numbers.paired(rows)["a"]
    assert (pair.ours["pass@1"], pair.theirs["pass@1"]) == ("0.8", "0.6")
    other = (
        dict(rows[3], recipe="b", words="b", baseline="grpo x"),
        dict(rows[4], words="grpo x", baseline="grpo x"),
    )
    assert atlas_numbers.paired([*rows, *other]).keys() == {"b"}  # the regime's newest base
    assert atlas_numbers.paired([*rows, *other], one_base=False).keys() == {"a", "b"}
    assert atlas_numbers.gains({"a": [pair]})["a"] == pytest.approx(0.2)


def test_rows_of_a_recipe_with_words_that_it_had_before_do_not_count() -> None:
    rows = [
        row("grpo", 0, "m", 0.5), row("grpo", 0, "m", 0.4, words="grpo x=1", baseline="grpo x=1"),
        row("a", 0, "m", 0.9, words="a x=1", baseline="grpo x=1"),
        row("a", 0, "m", 0.7, words="a y=1"), row("b", 0, "m", 0.6),
    ]  # fmt: skip
    for pairs in (atlas_numbers.paired(rows), atlas_numbers.paired(rows, one_base=False)):
        assert [float(pair.ours["pass@1"]) for pair in pairs["a"]] == [0.7]
        assert [float(pair.theirs["pass@1"]) for pair in pairs["a"]] == [0.5]
        assert pairs.keys() == {"a", "b"}
    again = dict(rows[3], **{"words": "a y=2", "pass@1": "0.8"})
    (pair,) = atlas_numbers.paired([*rows, again])["a"]
    assert pair.ours["pass@1"] == "0.8"


def test_a_recipe_of_several_updates_also_stands_beside_a_grpo_of_as_many() -> None:
    rows = [
        row(recipe, seed, machine, score + 0.01 * seed, words=words, baseline=baseline)
        for seed in range(2) for recipe, words, baseline, machine, score in (
            ("grpo", "grpo", "grpo", "m", 0.5), ("grpo", "grpo", "grpo", "n", 0.4),
            ("grpo", "grpo plan.num_minibatches=4", "grpo plan.num_minibatches=4", "m", 0.2),
            ("gspo", "gspo", "grpo", "m", 0.3), ("gmpo", "gmpo", "grpo", "n", 0.3),
            ("rloo", "rloo", "grpo", "m", 0.1),
        )
    ]  # fmt: skip
    pairs = atlas_numbers.paired(rows)
    assert pairs.keys() == {"gspo", "gmpo", "rloo"}
    *_, one, same = write_atlas.equal_updates(pairs, rows)
    assert one.startswith("| `grpo`, 4 minibatches | `grpo` | 2 | 0.205 | -0.300")
    assert same.startswith("| `gspo` | `grpo`, 4 minibatches | 2 | 0.305 | +0.100")
    assert not write_atlas.equal_updates(pairs, [each for each in rows if "=" not in each["words"]])


def test_a_grpo_of_as_many_updates_is_run_where_the_recipe_was() -> None:
    cells, _ = atlas.cells_of(["gspo", "rloo"], atlas.REGIMES["worked"], Path("inputs"))
    base, more, gspo, rloo = (cell.words for cell in cells)
    assert more == base.replace("grpo", "grpo plan.num_minibatches=4")
    done = [
        row(cell.recipe, 0, machine, 0.5, words=cell.words, fingerprint=cell.fingerprint)
        for cell in cells for machine in ("there", "here") if cell.words != more
    ]  # fmt: skip
    for kept, left in ((done, [more]), (done[::2], [])):
        found = atlas.missing(cells, 1, kept, "here", False, False)
        assert [cell.words for cell, _ in found] == left
    fresh = atlas.missing(cells, 1, [], "here", False, False)
    assert [cell.words for cell, _ in fresh] == [base, more, gspo, rloo]


def test_recipes_whose_runs_are_equal_in_the_seeds_that_all_have_are_named() -> None:
    same, other = (
        {"seed": "0", **dict.fromkeys(("pass@1", "pass@16", "sampled", "curve"), x)} for x in "12"
    )
    pairs = {
        name: [atlas_numbers.Pair(ours, same)]
        for name, ours in {"b": other, "a": other, "c": same, "d": dict(other, curve="3")}.items()
    }
    later = [dict(each, seed="1") for each in (other, same)]
    pairs["a"].append(atlas_numbers.Pair(*later))  # which no other recipe has
    assert write_atlas._repeated(pairs) == ["`a`, `b`", "`c`, `grpo`"]


def test_a_run_that_failed_is_named_until_it_is_repeated() -> None:
    failed = [row(name, 0, "m", 0, error="no") for name in ("a", "b")]
    (line,) = write_atlas.nulls("tiny", {}, [*failed, row("a", 0, "n", 0.5)])
    assert line == "- tiny: `b` seed 0 failed: no"


def test_a_regime_may_have_rows_of_its_baseline_alone_and_recipes_equal_to_it() -> None:
    base = [row("grpo", seed, "m", 0.5, curve="") for seed in range(5)]
    assert atlas_numbers.paired(base) == {}
    equal = [dict(each, recipe="a", words="a", sampled="1", **{"pass@16": "1"}) for each in base]
    base = [dict(each, sampled="1", **{"pass@16": "1"}) for each in base]
    undecided, _ = write_atlas.nulls("tiny", atlas_numbers.paired([*base, *equal]), equal)
    assert undecided.endswith(": 1 recipes, with differences of +0.000 to +0.000")  # resolves none


def test_scores_at_equal_tokens() -> None:
    ours = row("a", 0, "m", 0, curve="0 0.4 0.8", sampled_at="0 100 200")
    theirs = row("grpo", 0, "m", 0, curve="0 0.1 0.2", sampled_at="0 50 100")
    pair = atlas_numbers.Pair(ours, theirs)
    assert atlas_numbers.at_tokens([pair], "sampled_at") == [(0.4, 0.2)]


def test_a_saturating_curve_is_found_again() -> None:
    steps = np.linspace(0, 100, 11)
    with np.errstate(divide="ignore"):
        curve = 0.1 + 0.5 / (1 + (20 / steps) ** 2)
    curves = np.stack([curve + 0.01 * n for n in range(-2, 3)])
    found = atlas_numbers.fitted(curves, steps)
    assert found.why == ""
    assert found.asymptote[0] == pytest.approx(0.6, abs=0.02)
    assert found.midpoint[0] == pytest.approx(20, rel=0.1)
    assert found.efficiency[0] == pytest.approx(2, rel=0.1)
    assert found.asymptote[1] < 0.6 < found.asymptote[2]
    assert atlas_numbers.fitted(curves[:2], steps).why == "fewer than 5 seeds"
    early = np.where(steps > 0, 0.6, 0.1) + np.arange(5)[:, None] * np.linspace(0, 0.02, 11)
    assert atlas_numbers.fitted(early, steps).midpoint[1] == 0  # before the first of the grid
    assert atlas_numbers.fitted(curves[:, ::-1], steps).why == "the curve does not rise"


def test_ranks_say_nothing_of_few_recipes() -> None:
    assert atlas_numbers.spearman([1, 2], [1, 2]) is None
    assert atlas_numbers.spearman([0] * 10, range(10)) is None  # no order
    assert str(atlas_numbers.spearman(range(10), range(10))) == "+1.00 (+1.00 to +1.00), 10 recipes"


def test_no_run_counts_in_both_halves_of_a_regime() -> None:
    base = {seed: row("grpo", seed, "m", 0.5) for seed in range(3)}
    pairs = {
        "a": [atlas_numbers.Pair(row("a", s, "m", 0.5 + s / 10), base[s]) for s in range(3)],
        "b": [atlas_numbers.Pair(row("b", s, "m", 0.4), base[s]) for s in range(3)],
    }
    even, odd = atlas_numbers.halves(pairs)
    assert even == pytest.approx([0.1, -0.1])
    assert odd == pytest.approx([0.1, -0.1])
    pairs["a"][1] = atlas_numbers.Pair(row("a", 1, "m", 0.9), base[1])
    assert atlas_numbers.halves(pairs)[0] == even
    pairs["c"] = pairs["a"][:1]  # it has no odd seed
    assert atlas_numbers.halves(pairs)[0] == even


def test_ranks_are_of_differences_from_a_recipes_own_grpo() -> None:
    """Where that has other options, the easier setting would make a recipe the better one."""
    scores = {
        "hard": (("0 0.1 0.2", 0.2), ("0 0.2 0.3", 0.3)),
        "easy": (("0 1 1", 1), ("0 1 1", 1)),
    }
    pairs = {
        name: [atlas_numbers.Pair(*(row(name, 0, "m", last, curve=c) for c, last in (ours, base)))]
        for name, (base, ours) in scores.items()
    }
    early, last = atlas_numbers.early_and_last(pairs, 0.5)
    assert early == pytest.approx([0.1, 0])
    assert last == pytest.approx([0.1, 0])


def test_a_regime_of_another_model_keeps_paths_out_of_words_and_fingerprint(tmp_path: Path) -> None:
    cells = [
        atlas.cell_of("rloo", atlas.REGIMES["gemma"], tmp_path / name) for name in ("one", "two")
    ]
    assert cells[0].words == cells[1].words
    assert cells[0].fingerprint == cells[1].fingerprint
    assert str(tmp_path / "one" / "gemma") in cells[0].plan.entries[0].config
    assert cells[0].plan.scoring.ks == (1, 4)


def test_both_sides_have_one_model_and_the_words_that_they_are_listed_with(tmp_path: Path) -> None:
    atlas.files(tmp_path)
    names = ["arrol", "opsd", "vopd", "spear", "brorl", "dapo"]
    cells, left = atlas.cells_of(names, atlas.REGIMES["tiny"], tmp_path)
    assert [cell.recipe for cell in cells] == ["grpo", "vopd", "spear", "brorl", "dapo"]
    assert f"reference = '{tmp_path}/teacher" in cells[1].plan.entries[0].config.replace('"', "'")
    assert left["arrol"] == "it needs the model tiny-worked, and grpo has tiny here"
    assert left["opsd"].startswith("the shipped models cannot read")
    (own,) = atlas.cells_of(["spear"], atlas.REGIMES["own"], tmp_path)[0][1:]
    assert "spear(size=16, hist=16)" in own.words
    assert "curation.size" not in own.words
