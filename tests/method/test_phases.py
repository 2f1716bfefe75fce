"""Phases: how they are read, written and refused, and when one ends."""

import math
import tomllib

import pytest

from strop.method import notation
from strop.method.algorithm import BEGINNING, Algorithm, Phase, Phases, Until, phase_at, read_until
from strop.recipes.adaptive_entropy_coef import adaptive_entropy_coef
from strop.recipes.dapo import dapo
from strop.recipes.gae import gae
from strop.recipes.grpo import grpo
from strop.support.errors import UserError
from strop.training.settings import config
from strop.training.settings.assignments import override

LINE = (
    "until(2, grpo(num_rollouts=8)) @ broad | until(3 or frac_reward_zero_std < 0.1, dapo) | rloo"
)


@pytest.mark.parametrize(
    ("given", "until", "text"),
    [
        (200, Until(200), "200"),
        ("0.5", Until(0.5), "0.5"),
        ("0.3333333333333333", Until(1 / 3), "0.3333333333333333"),
        ("entropy<0.3", Until(0, "entropy", True, 0.3), "entropy < 0.3"),
        ("groups / frac_all_0 > 0.25", Until(0, "groups/frac_all_0", False, 0.25),
         "groups/frac_all_0 > 0.25"),
        ("reward > -1 or 40", Until(40, "reward", False, -1.0), "40 or reward > -1.0"),
    ],
)  # fmt: skip
def test_until_is_read_and_written(given, until, text):
    assert read_until(given) == until
    assert until.text == text
    assert read_until(text) == until


def test_a_phase_is_over_after_its_step_or_the_first_crossing():
    half, crossed = Until(0.5), read_until("8 or entropy < 0.3")
    assert [half.last(n) for n in (1, 2, 5, 10)] == [1, 1, 2, 5]
    assert [half.over(step, 10, {}) for step in (4, 5, 6)] == [False, True, True]
    assert not crossed.over(7, 10, {"entropy": 0.3})
    assert crossed.over(7, 10, {"entropy": 0.29})
    assert crossed.over(8, 10, {"entropy": 0.9})
    above = read_until("8 or entropy > 0.3")
    assert [above.over(7, 10, {"entropy": value}) for value in (0.3, 0.31)] == [False, True]
    assert not crossed.over(7, 10, {"entropy": math.nan})
    assert not crossed.over(7, 10, {})
    method = Phases((Phase(grpo(), crossed), Phase(dapo())))
    second = {"number": 2, "begun": 8}
    assert method.next(BEGINNING, 1, 10, {"entropy": 0.4}) == BEGINNING
    assert method.next(BEGINNING, 7, 10, {"entropy": 0.2}) == second
    assert method.next(second, 9, 10, {"entropy": 0.9}) == second  # and never back
    assert phase_at({}) == BEGINNING


REFUSED = (
    ("until(2, grpo)", "give at least two"),
    ("grpo | dapo", "phase grpo: nothing says when it ends"),
    ("until(2, grpo) | until(4, dapo)", "phase dapo is until 4, and nothing follows it"),
    ("until(2, grpo) @ x | dapo @ x", "two are called x"),
    ("until(entropy < 0, grpo) | dapo", "until entropy < 0.0: that never happens"),
    ("until(groups/frac_all_0 > 1, grpo) | dapo", "that never happens"),
    ("until(reward > inf, grpo) | dapo", "'inf' is neither a step nor a condition"),
    ("until(2.5, grpo) | dapo", "until 2.5: a phase ends at a step or condition"),
    ("until(0, grpo) | dapo", "a phase ends at a step or condition"),
    ("until(2 or 3, grpo) | dapo", "one step and one condition at most"),
    ("until('eval/validation/pass@1 > 0.5', grpo) | dapo", "is not a metric that every step"),
    ("until(grpo) | dapo", r"write a phase as until\(step or condition, recipe\)"),
    ("until(2, grpo) @ 'a b' | dapo", "is no name of a phase"),
    ("until(2, grpo(num_rollout=3)) | dapo", "recipe grpo has no parameter num_rollout"),
)


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_lines_that_cannot_be_meant(line, message):
    with pytest.raises(UserError, match=message):
        notation.recipe(line)


def test_a_line_is_read_as_phases():
    method = notation.recipe(LINE)
    assert method.names == ("broad", "dapo", "rloo")
    assert method.algorithms[0] == grpo(num_rollouts=8)
    assert method.algorithms[1] == dapo()
    assert notation.recipe("until(1, grpo) | grpo(beta=0.1)").names == ("grpo", "grpo_2")
    assert isinstance(notation.recipe("grpo"), Algorithm)


def run_of(**raw):
    return config.make({"training": {"steps": 9}, **raw})


def read_again(settings):
    return config.make(tomllib.loads(settings.to_toml()))


@pytest.mark.parametrize(
    "raw",
    [
        {"recipe": LINE},
        {"phases": {"broad": {"until": 3, "algorithm": {"sampling.num_rollouts": 8}}, "hard": {}}},
        {"recipe": "", "phases": {
            "a": {"until": "reward > 0.5", "recipe": "dapo"}, "b": {"recipe": "rloo"}}},
        {"recipe": LINE, "phases": {"dapo": {"until": 5, "stages": {"curation": "none"}}}},
    ],
)  # fmt: skip
def test_a_file_holds_phases_whole(raw):
    given = run_of(**raw)
    complete = given.complete()
    assert read_again(complete).build() == complete.build() == given.build()
    assert read_again(complete).complete() == complete
    alone = complete.model_copy(update={"recipe": ""})
    assert read_again(alone).build() == given.build()


def test_what_is_given_for_the_whole_and_for_one_phase():
    told = ["sampling.num_prompts=4", "phases.dapo.sampling.num_prompts=5", "advantage.eps=0.5",
            "phases.broad.until=1", "phases.rloo.advantage=subtract_group_mean | spread_evenly",
            "bound=clip_both_sides(clip_high=0.9)"]  # fmt: skip
    first = run_of(**override({"recipe": LINE}, told))
    method = first.build()
    paths = method.paths()
    prompts = [paths[f"phases.{name}.sampling.draw_in_shuffled_order.num_prompts"]
               for name in method.names]  # fmt: skip
    assert prompts == [4, 5, 4]
    assert paths["phases.broad.advantage.divide_by_group_std.eps"] == 0.5
    assert "phases.rloo.advantage.divide_by_group_std.eps" not in paths
    assert {v for k, v in paths.items() if k.endswith("clip_high")} == {0.9}
    # over a file in which every phase is written out the same are heard
    file = tomllib.loads(first.complete().to_toml())
    again = ["sampling.num_prompts=7", "phases.dapo.sampling.num_prompts=8",
             "advantage=subtract_group_mean | spread_evenly"]  # fmt: skip
    changed = config.make(override(file, again)).build()
    paths = changed.paths()
    prompts = [v for k, v in paths.items() if k.endswith("order.num_prompts")]
    assert prompts == [7, 8, 7]
    assert not [k for k in paths if k.endswith(".eps")]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"recipe": "until(9, grpo) | dapo"}, "phase dapo would begin after step 9, .* has 9"),
        ({"recipe": "until(5, grpo) | until(0.5, dapo) | rloo"}, "so they must rise"),
        ({"recipe": LINE, "phases": {"brod": {}}}, "no phase 'brod', did you mean broad"),
        ({"recipe": LINE, "algorithm": {"phases.brod.until": 3}}, "no phase 'brod'"),
        ({"recipe": LINE, "algorithm": {"advantage.epss": 3}}, "no option advantage.epss"),
        ({"phases": {"a": {"until": 3}, "b": {"recipe": LINE}}}, "phases.b: .* has phases of its"),
        ({"phases": {"a": {}}}, "give at least two"),
        ({"phases": {"a": {}, "b": {}}}, "phase a: nothing says when it ends"),
        ({"phases": {"a": {"untill": 3}}}, "no option phases.a.untill"),
        ({"phases": {"a": {"until": [3]}}}, "phases.a.until = "),
        ({"recipe": LINE, "phases": {"dapo": {"stages": {"advantage": "none"}}}},
         "phase dapo: .*advantage"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant(raw, message):
    with pytest.raises(UserError, match=message):
        run_of(**raw).build()


def test_one_label_stands_for_one_part():
    line = "sampling=draw_in_shuffled_order @ mine"
    one = override({}, [line, "phases.a.until=2", "phases.b.recipe=grpo"])
    run_of(**one).build()
    other = override(one, ["phases.b.sampling=draw_solvable_prompts @ mine"])
    with pytest.raises(UserError, match=r"phases a and b: sampling.mine is .* give one of"):
        run_of(**other).build()


def test_a_control_moves_what_it_moves_in_its_own_phase():
    method = Phases((Phase(adaptive_entropy_coef(), Until(2)), Phase(grpo())))
    knobs = {"terms.entropy.coef": 0.3, "model.reference": 4}
    assert method.knobs_in(1, knobs) == knobs
    assert method.knobs_in(2, knobs) == {"model.reference": 4}


def test_what_phases_need_is_what_any_of_them_needs():
    method = Phases((Phase(grpo(beta=0.1), Until(2), "one"), Phase(gae(), None, "two")))
    assert method.value_columns() == gae().value_columns()
    assert "logp_ref_T" in method.reads()
    shown = notation.shown(method)
    assert shown["phases"] == ["one until 2", "two"]
    assert shown["rollout"] == ["sample_independently"]
    assert {"advantage (one)", "advantage (two)"} <= shown.keys()


RECIPE = """
from strop.method.algorithm import Phase, Phases, Until
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def narrowing(*, until: float = 0.5, **parent) -> Phases:
    first, second = grpo(**parent), grpo(**{**parent, "num_prompts": 2})
    return Phases((Phase(first, Until(until), "wide"), Phase(second, None, "narrow")))
"""


def test_a_recipe_may_be_phases(tmp_path):
    (tmp_path / "mine.py").write_text(RECIPE, encoding="utf-8")
    name = f'"{tmp_path}/mine.py:narrowing"'
    method = notation.recipe(f"{name}(until=3, clip_high=0.3)")
    assert method.names == ("wide", "narrow")
    assert method.phases[0].until == Until(3)
    assert [each.terms[0].objective.part.clip_high for each in method.algorithms] == [0.3, 0.3]
    with pytest.raises(UserError, match="has phases of its own"):
        notation.recipe(f"until(2, {name}) | grpo")
    assert (
        run_of(recipe=name, phases={"narrow": {"recipe": "dapo"}}).build().algorithms[1] == dapo()
    )
