"""The pages of recipes and parts, and the map, in the form that the generator gets."""

import re

import pytest
from docsite import drawing, method_map, part_page, recipe_page, source, start
from docsite.known import Known, ranges

from strop.method.notation import build_recipe


def test_every_equation_is_typeset(known: Known) -> None:
    for name in known.recipes:
        known.of_recipe(name)
    for name in known.parts:
        known.of_part(name)
    numbers = len(known.recipes), len(known.parts)
    assert known.said() == (
        f"equations typeset: {numbers[0]} of {numbers[0]} recipes and {numbers[1]} of "
        f"{numbers[1]} parts"
    )


def test_a_recipe_says_what_it_is(known: Known) -> None:
    text = recipe_page.page("gspo", known)
    for said in (
        "https://arxiv.org/abs/2507.18071), eq. 5 and 7", "Token-level ratios are noisy",
        "| `terms.policy.objective.clip_high` | `0.2` | `0.0004` |", "strop train gspo\n",
        'strop.train("gspo")', "| `clip_high` | `0.0004` | at least 0.0 |",
        "- TRL: yes\n- verl: advantages: yes",
        "Parent: [`grpo`](grpo.md)", "[`gspo_token`](gspo_token.md)",
    ):  # fmt: skip
        assert said in text
    assert "data.task=corridor" in recipe_page.page("gigpo", known)
    assert "strop train reex_sql data.task=kernel_timing\n" in recipe_page.page("reex_sql", known)
    assert "strop train gkd model.reference=TEACHER\n" in recipe_page.page("gkd", known)
    assert "--data FILE" in recipe_page.page("dpo", known)


def test_a_part_says_what_it_is(known: Known) -> None:
    text = part_page.page("clip_both_sides", known)
    assert "| `log_ratio_T` | float | nats | log of the importance ratio |" in text
    assert "| `clip_low` | `0.2` | at least 0.0 |" in text
    assert "src/strop/parts/loss/bound/clip_both_sides.py" in text
    assert "[`gspo`](../recipes/gspo.md)" in text
    assert "`weight_by_clipped_ratio`, whose" in text


def test_the_values_that_a_field_may_have() -> None:
    module = "strop.parts.advantage.baseline.subtract_group_mean"
    found = ranges(module, "SubtractGroupMean")
    assert found == {"singleton": "'raw', 'zero'", "num_imagined": "at least 0"}
    # A page shows only the ranges of fields that are named where they are checked.
    for path in source.ROOT.glob("src/strop/parts/**/*.py"):
        assert not re.search(r"require\w*\(\s*self,\s*\w", path.read_text(encoding="utf-8")), path


def test_the_drawing_marks_what_is_other_than_in_the_parent() -> None:
    gspo, grpo = build_recipe("gspo", {}), build_recipe("grpo", {})
    states = {
        each.name: each.state for each in drawing.placed(gspo, [grpo]) if each.stage == "terms"
    }
    assert states == {
        "ratio_per_sequence": "changed", "clip_both_sides": "changed",
        "average_per_sequence": "same", "ratio_per_token": "gone",
    }  # fmt: skip
    assert {each.state for each in drawing.placed(grpo)} == {"same"}


def test_the_map_has_every_method_once_and_its_stages(known: Known) -> None:
    text = method_map.page(known)
    rows = dict(re.findall(r'<a href="recipes/(\w+)\.html" data-stages="([^"]*)"', text))
    assert list(rows) == [e.name for members in known.families.values() for e in members]
    assert rows["gspo"] == "terms plan"
    assert rows["grpo"] == ""  # it has no parent to be other than
    number = sum("control" in stages.split() for stages in rows.values())
    assert f'data-stage="control" aria-pressed="false">control <small>{number}</small>' in text


def test_names_in_the_tables_of_parts_and_methods_become_code(known: Known) -> None:
    row = "| `clip_both_sides` | A token stops. | none like ratio_per_token | gspo, dapo |"
    assert source.named(row, known) == (
        "| `clip_both_sides` | A token stops. | none like `ratio_per_token` | `gspo`, `dapo` |\n"
    )
    assert source.named("| [`ace`](a.md) | 1 | grpo | when |", known) == (
        "| [`ace`](a.md) | 1 | `grpo` | when |\n"
    )


@pytest.mark.parametrize(
    ("place", "text", "wanted"),
    [
        ("docs/A.md", "[r](../README.md)", "[r](../index.md)"),
        ("docs/A.md", "[n](notebooks/n.ipynb)", "[n](notebooks/n.md)"),
        ("docs/A.md", "[e](methods/entropy.md#epo)", "[e](../recipes/epo.md)"),
        ("docs/evidence/A.md", "[e](../methods/entropy.md#epo)", "[e](../../recipes/epo.md)"),
        ("docs/A.md", "[e](methods/entropy.md)", "[e](../families/entropy/index.md)"),
        ("docs/evidence/A.md", "[r](../README.md)", "[r](../README.md)"),
        ("CHANGELOG.md", "[e](docs/methods/entropy.md#epo)", "[e](recipes/epo.md)"),
        ("docs/A.md", "[m](METHODS.md)", "[m](METHODS.md)"),
    ],
)
def test_links_of_docs_lead_on(place: str, text: str, wanted: str) -> None:
    assert source.of_the_site(text, source.Path(place)) == wanted


def test_the_first_page_has_the_readmes_steps(known: Known) -> None:
    text = start.page(known)
    assert "strop.train(" in text
    assert f"## {len(known.recipes)} methods from {len(known.parts)} parts" in text
    with pytest.raises(ValueError, match="no section 'Nowhere'"):
        start._section("## Set up\n\n## Next\n", "Nowhere")
