"""Recipes by family: the order, and the treatment of unknown names."""

import pytest

from strop.catalogue import catalogue, families
from strop.catalogue.entries import Entry
from strop.support.errors import UserError


def entry(name: str, family: str, parent: str) -> Entry:
    doc = f"Title.\n\narXiv 2402.03300. Parent: {parent}. Status: exact.\n\nFamily: {family}.\n"
    return Entry(name, "recipe", "recipes", "strop.recipes.none", name, doc, ())


def test_names_are_plain_and_every_family_has_recipes():
    names = [family.name for family in families.FAMILIES]
    assert len(set(names)) == len(names) == 10
    assert all(name.isalpha() and name.islower() for name in names)
    grouped = families.grouped(catalogue.recipes())
    assert tuple(grouped) == families.FAMILIES
    assert all(len(members) >= 5 for members in grouped.values())
    assert sum(map(len, grouped.values())) == len(catalogue.recipes())


def test_a_recipe_follows_its_parent_where_both_are_of_one_family():
    given = [
        entry("late", "ratios", "early"), entry("early", "ratios", "far"),
        entry("later", "ratios", "late"), entry("b", "ratios", "z"), entry("z", "entropy", "early"),
    ]  # fmt: skip
    found = {f.name: [e.name for e in some] for f, some in families.grouped(given).items()}
    assert found == {"ratios": ["b", "early", "late", "later"], "entropy": ["z"]}


def test_a_recipe_of_no_known_family_comes_last():
    given = [entry("a", "bonuses", "none"), entry("b", "entropy", "none")]
    found = families.grouped(given)
    assert [family.name for family in found] == ["entropy", "other"]
    assert [e.name for e in found[families.OTHER]] == ["a"]


def test_unknown_families_get_the_nearest():
    assert families.find("turns").title == "Turns, tools and players"
    with pytest.raises(UserError, match=r"no family 'turn', did you mean turns\?; they are basel"):
        families.find("turn")
