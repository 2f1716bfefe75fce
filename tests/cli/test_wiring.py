"""Every algorithm can be written to a file, wiring and labels included, and read back."""

import itertools
import math
import re
import tomllib
from collections.abc import Iterator
from functools import partial

import pytest
from changed import candidates, texts
from every import every
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.api.options import combined
from strop.catalogue import catalogue
from strop.method import notation, reading, writing
from strop.method.algorithm import Method
from strop.method.cost import needs_of
from strop.recipes.archer import archer
from strop.recipes.grpo import grpo
from strop.support.errors import UserError
from strop.training.settings import config
from strop.training.settings.assignments import override
from strop.training.settings.method import plain

NAMES = [entry.name for entry in catalogue.recipes()]
every_recipe = every("recipe", NAMES)


def read_again(run: config.RunConfig) -> config.RunConfig:
    return config.make(tomllib.loads(run.to_toml()))


def run_of(recipe: str, **raw) -> config.RunConfig:
    plays = "environment" in needs_of(notation.recipe(recipe))
    task = {"task": "corridor"} if plays else {}
    return config.make({"recipe": recipe, "data": task, **raw})


@every_recipe
def test_written_and_read_back_it_is_the_same(recipe):
    for algorithm in notation.recipe(recipe).algorithms:
        assert notation.compose(writing.written(algorithm)) == algorithm


@every_recipe
def test_the_whole_file_gives_the_same_algorithm_without_the_recipe(recipe):
    complete = run_of(recipe).complete()
    bare = {k: p.model_copy(update={"algorithm": {}}) for k, p in complete.phases.items()}
    alone = complete.model_copy(update={"recipe": "", "algorithm": {}, "phases": bare})
    assert read_again(alone).build() == complete.build() == run_of(recipe).build()


def test_no_two_recipes_read_alike():
    methods = {recipe: notation.recipe(recipe) for recipe in NAMES}
    texts = {
        recipe: [getattr(method, "phases", ()) and notation.shown(method)["phases"],
                 *map(writing.written, method.algorithms)]
        for recipe, method in methods.items()
    }  # fmt: skip
    for one, other in itertools.combinations(NAMES, 2):
        assert texts[one] != texts[other], f"{one} and {other}"


def accepted(algorithm: Method, path: str, others: list[object]) -> Iterator[object]:
    """The first of other values of an option that the part takes, as the part has it then."""
    for other in others:
        try:
            yield algorithm.with_knobs({path: other}).paths()[path]
            return
        except UserError:
            continue


def at(algorithm: Method, path: str, text: object) -> Method:
    return algorithm.with_knobs({path: text})


def test_every_option_is_read_back_the_same():
    """Another value of each, and an infinite one, through the text of the file; an option that
    several recipes have alike is tried with the first.
    """
    tried = set()
    for recipe in NAMES:
        algorithm = notation.recipe(recipe)
        for path, value in algorithm.paths().items():
            if (path, repr(value)) in tried:
                continue
            tried.add((path, repr(value)))
            others = candidates(value) if value is not None else []
            if isinstance(value, str):
                others = texts(partial(at, algorithm, path), value)
            infinite = [math.inf, -math.inf] if isinstance(value, float) else []
            for other in (*accepted(algorithm, path, others),
                          *accepted(algorithm, path, infinite)):  # fmt: skip
                file = tomllib.loads(config.RunConfig(algorithm={path: plain(other)}).to_toml())
                (found,) = file["algorithm"].values()
                found = reading.value(found) if isinstance(found, str) else found
                found = reading.override(algorithm, path, found).paths()[path]
                assert found == other, f"{recipe}: {path}"


@pytest.mark.parametrize(
    ("given", "text"),
    [("'a b'", "a b"), ('"7"', "7"), ("''", ""), ("a", "a"), ("'a", "'a"), ("'", "'"), ("7", "7")],
)
def test_text_may_stand_in_quotes(given, text):
    assert override({}, [f"model.name={given}"]) == {"model": {"name": text}}


def test_blanks_are_part_of_a_text_that_is_given_by_itself():
    for path in ("data.system_prompt", "rollout.reminder", "data.stop_strings"):
        section, _, name = path.partition(".")
        section, name = ("algorithm", path) if section == "rollout" else (section, name)
        for text in ("\n", " a\n"):
            assert override({}, [(path, text)]) == {section: {name: text}}
        assert override({}, [f"{path}= a "]) == {section: {name: "a"}}


@pytest.mark.parametrize("path", ["loss.clip_high=inf", "loss.clip_high=constant(inf)"])
def test_an_infinite_option_survives_the_complete_file(path):
    run = config.make(override({}, [path]))
    assert run.build().paths()["terms.policy.objective.clip_high"] in (
        math.inf, reading.value("constant(inf)"),
    )  # fmt: skip
    assert read_again(run.complete()).build() == run.build()


def test_the_printed_file_of_a_recipe_is_that_recipe(strop):
    file = tomllib.loads(strop("recipes", "archer", "--toml").out)
    assert config.make(file | {"data": {"task": "corridor"}}).build() == archer()
    for option in ("seed=3", "seed = 3"):  # as strop train takes them
        assert tomllib.loads(strop("recipes", "grpo", "--toml", option).out)["seed"] == 3
    result = strop("recipes", "--toml")
    assert result.code == 2
    assert "--toml prints one recipe's stages: give its name" in result.err


def test_archer_tells_its_wires_and_labels_apart():
    lines = writing.describe(archer())["advantage"]
    assert len(set(lines)) == len(lines)
    assert (
        "spread_turns[advantage_K: value_after_slow_K, advantage_T: return_value_T] @ return_value"
        in lines
    )


def test_a_column_that_keeps_its_name_is_no_wire():
    """archer gives each of its readers all three names, some of them the reader's own."""
    own = re.compile(r"(\w+): \1\b")
    assert not [text for texts in writing.describe(archer()).values() for text in texts
                if own.search(text)]  # fmt: skip
    (use, *_) = reading.chain("spread_turns[advantage_K: advantage_K, advantage_T: x_T]")
    assert use.columns == (("advantage_T", "x_T"),)
    (use,) = reading.chain("subtract_group_mean[advantage_B: advantage_B]")
    assert use == reading.chain("subtract_group_mean")[0], "written alone or read as well"
    (use,) = reading.chain("add_capped_bonus[bonus_T: bonus_T]")
    assert use.columns == (("bonus_T", "bonus_T"),), "its class has another column there"
    (use,) = reading.chain("spread_turns[nothing_K: nothing_K]")
    assert use.columns == (("nothing_K", "nothing_K"),), "no column of its: to be refused"


@settings(max_examples=50)
@given(
    label=st.sampled_from(["", "mine", "a label", "2nd", "for"]),
    column=st.sampled_from(["group_B", "whole_B", "nucleus_entropy_0.8_T"]),
    repeats=st.integers(1, 3),
)
def test_labels_and_columns_of_any_name_survive(label, column, repeats):
    (use, *_) = grpo().advantage
    changed = type(use)(use.part, (("group_B", column),), label)
    stages = writing.written(grpo()) | {"advantage": [writing.use_text(changed)] * repeats}
    composed = notation.compose(stages)
    assert [each.part for each in composed.advantage] == [use.part] * repeats
    assert all(each.columns == changed.columns for each in composed.advantage)
    assert notation.compose(writing.written(composed)) == composed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spread_evenly[advantage_B]", r"columns are renamed as part\[parameter: column"),
        ("spread_evenly[1: advantage_B]", "1 is no name"),
        ("spread_evenly @ 3", "3 is no name"),
        ("spread_evenly @ mine @ yours", "write a name, or name"),
    ],
)
def test_bad_wiring_is_named(text, message):
    with pytest.raises(UserError, match=message):
        reading.chain(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy", "write a loss term as name"),
        ("policy(objective=follow_advantage)", "the loss term policy has no average"),
        ("policy(objektive=follow_advantage)", "has no objektive, did you mean objective"),
        ("kl(objective=penalise_kl_to_reference, average=average_over_tokens, coef=much)",
         "coef must be a number or a schedule"),
    ],
)  # fmt: skip
def test_bad_terms_are_named(text, message):
    with pytest.raises(UserError, match=message):
        reading.terms(text)


def test_any_stage_and_slot_is_set_by_its_name():
    said = [
        "sampling='draw_in_shuffled_order(num_prompts=3)'", "reward=score_with_verifiers",
        "curation=drop_uniform_groups", "advantage='subtract_group_median | spread_evenly'",
        "selection=drop_truncated_rollouts", "plan='split_into_minibatches(num_epochs=2)'",
        "correction=weigh_by_engine_ratio", "bound='clip_both_sides(clip_high=0.3)'",
        "average=average_over_tokens", "loss.clip_low=0.1", "stages.control=none",
    ]  # fmt: skip
    said = [text.replace("'", "") for text in said]
    algorithm = config.make(override({}, said)).build()
    shown = writing.written(algorithm)
    assert shown["sampling"] == "draw_in_shuffled_order(num_prompts=3)"
    assert shown["curation"] == "drop_uniform_groups"
    assert shown["terms"] == (
        "policy(ratio=ratio_per_token, correction=weigh_by_engine_ratio, "
        "objective=clip_both_sides(clip_low=0.1, clip_high=0.3), average=average_over_tokens)"
    )
    emptied = config.make(override({}, ["curation=none"]))
    assert emptied.build().curation == ()


TERMS = "policy(ratio=ratio_per_token,\n    objective=clip_both_sides, average=average_over_tokens)"


def test_a_slot_goes_into_the_terms_that_are_given_with_it():
    wide = "clip_both_sides(clip_high=0.9)"
    algorithm = config.make({"stages": {"bound": wide, "terms": TERMS}}).build()
    assert [term.objective.part.clip_high for term in algorithm.terms] == [0.9]
    assert algorithm.terms[0].average.label == "average_over_tokens"
    alone = {"recipe": "", "stages": {**writing.written(grpo()), "bound": wide}}
    assert config.make(alone).build().terms[0].objective.part.clip_high == 0.9


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"bound": "clip_both_sides", "objective": "clip_both_sides"}, "bound and objective are"),
        ({"loss": TERMS, "terms": TERMS}, "loss and terms are two names of one place: give one"),
        ({"rollout": "none"}, "rollout: there is none; sample_independently"),
    ],
)
def test_stages_that_cannot_be_meant_are_named(stages, message):
    with pytest.raises(UserError, match=message):
        config.make({"stages": stages}).build()


def test_an_empty_chain_is_not_taken_for_the_recipes(strop):
    result = strop("train", "--advantage", "")
    assert result.code == 2
    assert "end the chain with a credit part" in result.err


def test_a_method_without_a_recipe_has_a_name(strop, tmp_path):
    file = tmp_path / "method.toml"
    file.write_text(strop("recipes", "grpo", "--toml").out)
    few = [
        "training.steps=1",
        "sampling.num_prompts=1",
        "sampling.num_rollouts=2",
        "evaluation.every=0",
    ]
    started = strop("train", "--config", str(file), *few, "--out", str(tmp_path / "run"))
    assert "a method of [stages] on countdown" in started.out
    result = strop("train", "dapo", "--config", str(file))
    assert result.code == 2
    assert "belong to its own [stages], not to dapo" in result.err
    near = strop("train", "advnatage=none")
    assert "no option advnatage, did you mean advantage" in near.err


def test_a_method_with_parameters_and_options_is_kept_in_a_file(strop, tmp_path):
    file = tmp_path / "mine.toml"
    text, option = "grpo(clip_high=0.4, beta=0.04)", "plan.num_minibatches=4"
    file.write_text(strop("recipes", text, option, "--toml").out)
    assert config.load(file).build() == combined(text, [option], {}).build()
    assert "clip_both_sides(clip_high=0.4)" in strop("recipes", text).out
    of_the_run = ["training.lr=2e-3", "seed=3", "data.task=corridor", "training.steps=7"]
    file.write_text(strop("recipes", "grpo", *of_the_run, "--toml").out)
    settings = config.load(file)
    found = settings.training.lr, settings.seed, settings.data.task, settings.training.steps
    assert found == (2e-3, 3, "corridor", 7)
    for words in (["grpo", option], ["ratio", option, "--toml"]):
        result = strop("recipes", *words)
        assert result.code == 2
        assert f"{option} sets an option: it goes with a recipe's name and --toml" in result.err


def test_options_of_one_part_may_come_in_any_order():
    ends = ("least=50", "most=99")
    words = [f"{stage}.{end}" for stage in ("sampling", "control") for end in ends]
    for order in (words, words[::-1]):
        line = "until(0.5, rollout_gdro) @ a | rollout_gdro @ b"
        in_phase = combined(line, [f"phases.b.{word}" for word in order], {}).build()
        for algorithm in (combined("rollout_gdro", order, {}).build(), in_phase.in_phase(2)):
            found = {path.rpartition(".")[2]: v for path, v in algorithm.paths().items()}
            assert (found["least"], found["most"]) == (50, 99)


def test_a_loss_given_anew_is_whole_whatever_slots_a_file_has(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[stages]\nbound = 'clip_both_sides(clip_high=0.3)'\n", encoding="utf-8")
    loss = (
        "policy(ratio=ratio_per_token, objective=weight_by_clipped_ratio, "
        "average=average_over_tokens)"
    )
    for words in ([f"loss={loss}"], ["average=average_per_sequence", f"terms={loss}"]):
        (term,) = combined("", words, {}, file).build().terms
        assert term.objective.label == "weight_by_clipped_ratio"
        slot = "average_per_sequence" if len(words) > 1 else "average_over_tokens"
        assert term.average.label == slot
    (term,) = combined("", ["objective=clip_both_sides"], {}, file).build().terms
    assert term.objective.part.clip_high == 0.2


def test_defaults_of_a_files_model_or_task_do_not_win_over_the_command(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[training]\nsteps = 3\n", encoding="utf-8")
    given = combined("", [], {"model": {"name": "tiny-worked"}}, file)
    assert (given.training.steps, given.data.task) == (3, "worked_countdown")
    file.write_text("[data]\ntask = 'corridor'\n", encoding="utf-8")
    other = combined("", ["data.task=reasoning_gym:chain_sum"], {}, file)
    assert "style" not in other.data.task_config


def test_a_stage_given_anew_drops_the_options_that_a_file_had_for_it():
    complete = config.make({"algorithm": {"loss.clip_high": 0.5}}).complete()
    raw = complete.model_dump()
    built = config.make(override(raw, ["bound=clip_both_sides(clip_low=0.1)"])).build()
    assert built.paths()["terms.policy.objective.clip_low"] == 0.1
    assert built.paths()["terms.policy.objective.clip_high"] == 0.2
    built = config.make(override(raw, ["advantage=subtract_group_mean|spread_evenly"]))
    assert [use.label for use in built.build().advantage] == [
        "subtract_group_mean",
        "spread_evenly",
    ]
    assert built.build().paths()["terms.policy.objective.clip_high"] == 0.5


def test_a_stage_may_be_a_list_of_texts_as_in_a_file():
    parts = ["subtract_group_mean", "spread_evenly"]
    for place in ("advantage", "phases.late.advantage"):
        assert override({}, [(place, parts)]) == override({}, [(place, " | ".join(parts))])
