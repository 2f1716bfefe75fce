"""Names of TRL and verl are answered with strop's, from the table that the docs show."""

import re

import pytest

from strop.api.options import combined
from strop.catalogue import catalogue, peers
from strop.method import notation, reading
from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.support.errors import UserError, nearest
from strop.training.settings import config
from strop.training.settings.assignments import override


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("num_generations", "sampling.num_rollouts"),
        ("--num-generations", "sampling.num_rollouts"),
        (
            "beta",
            "beta in the brackets of a recipe, as grpo(beta=0.04), or terms.kl.coef where it has "
            "one, or rloo(beta=0.05), paid by the reward; leave it out for none",
        ),
        ("kl_coef", "rloo(beta=0.05), paid by the reward; leave it out for none"),
        ("algorithm.kl_ctrl.kl_coef", "rloo(beta=0.05), paid by the reward; leave it out for none"),
        ("actor_rollout_ref.rollout.n", "sampling.num_rollouts"),
        ("max_completion_length", "rollout.max_tokens"),
        ("training.learning_rate", "training.lr, a number or a schedule"),
        ("model.path", "model.name, --model"),
        ("clip_ratio_high", "loss.clip_high"),
        ("norm_adv_by_std_in_grpo", "grpo(normalize_std=False)"),
        ("use_vllm", "engine.kind=vllm"),
        ("vllm_mode", "engine.kind=vllm"),
        ("adv_estimator", "the recipe, strop train RECIPE: strop recipes lists them"),
        ("importance_sampling_level", "the recipe gspo"),
        ("logging_steps", "nothing: every step is logged; tracking.to names trackers"),
    ],
)
def test_a_peers_option_is_answered_with_ours(word, ours):
    written = word.strip("-").replace("-", "_")
    assert peers.ours(word) == f": what TRL or verl call {written} is here {ours}"


@pytest.mark.parametrize("word", ["gradient_accumulation_steps", "per_device_train_batch_size"])
def test_batches_of_devices_are_answered_by_what_they_are_here(word):
    assert "micro-batches follow from training.token_budget" in peers.ours(word)
    assert "sampling.num_prompts" in peers.ours("batch_size")


@pytest.mark.parametrize("line", ["DR_GRPO(beta=0.1)", "dr-grpo(beta=0.1)", "Dr-GRPO(beta=0.1)"])
def test_recipes_are_found_however_they_are_spelled(line):
    assert catalogue.spelled(line) == "dr_grpo(beta=0.1)"
    assert combined(line, [], {}).recipe == "dr_grpo(beta=0.1)"
    assert catalogue.find("recipe", line.partition("(")[0]).name == "dr_grpo"
    assert catalogue.spelled("no-such") == "no-such"


@pytest.mark.parametrize("word", ["nothing_of_the_kind", "", "dapo", "float32", "auto"])
def test_other_words_and_values_are_no_options(word):
    assert peers.ours(word) == ""


def test_every_name_of_the_tables_is_answered():
    """Those in backticks, but for values in brackets and what is no name."""
    for kind, least in (("options", 80), ("methods", 10)):
        rows = [line.split(" | ") for line in peers.table(kind).splitlines()[2:]]
        names = [
            name for row in rows for cell in row[1:]
            for name in re.findall(r"`([A-Za-z][\w.]*)[`=]", re.sub(r" \([^)]*\)", "", cell))
        ]  # fmt: skip
        assert len(names) > least
        assert all(peers.ours(name, kind) for name in names)


@pytest.mark.parametrize("term", sorted(reading.ADDING))
def test_the_term_that_a_message_offers_can_be_appended(term):
    before = "policy(ratio=ratio_per_token, objective=clip_both_sides, average=average_over_tokens)"
    method = reading.replace_stage(grpo(), "terms", f"{before} | {reading.ADDING[term][1]}")
    check(method)
    assert f"terms.{term}.coef" in method.paths()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: override({}, ["num_generations=8"]),
            "no option num_generations: what .* num_generations is here sampling.num_rollouts",
        ),
        (
            lambda: override({}, ["trainer.nnodes=1", "seed=3", "data.train_batch_size=9"]),
            r"2 options are wrong:\n  trainer.nnodes: here .*\n  data.train_batch_size: here samp",
        ),
        (lambda: override({}, ["kl_coef=0.1"]), "no option kl_coef: .* is here rloo"),
        (lambda: override({}, ["mdoel.name=x"]), r"mdoel\.name, did you mean model\.name\?$"),
        (lambda: override({}, ["trainig.lr=1"]), r"trainig\.lr, did you mean training\.lr\?$"),
        (lambda: override({}, ["data.path=x"]), r"data\.path; data has task, files, "),
        (lambda: override({}, ["evaluation.samples=3"]), r"mean evaluation\.num_samples\?$"),
        (lambda: override({}, ["clip_high=0.3"]), r"clip_high, did you mean loss\.clip_high\?$"),
        (lambda: override({}, ["num_minibatches=2"]), r"did you mean plan\.num_minibatches\?$"),
        (lambda: override({}, ["num_rollout=8"]), r"did you mean sampling\.num_rollouts\?$"),
        (lambda: override({}, ["steps=8"]), r"did you mean training\.steps\?$"),
        (
            lambda: notation.recipe("grpo(dual_clip_c=3)"),
            "no parameter dual_clip_c, did you mean loss.dual_clip_c",
        ),
        (
            lambda: config.make({"training": {"learning_rate": 1}}),
            "no option training.learning_rate: .* is here training.lr, a number",
        ),
        (
            lambda: notation.recipe("grpo(num_generations=8)"),
            "grpo has no parameter num_generations: .* is here sampling.num_rollouts; it has",
        ),
        (
            lambda: reading.resolve(grpo(), "loss.epsilon_high"),
            "no option loss.epsilon_high: .* is here loss.clip_high; terms has",
        ),
        (
            lambda: reading.resolve(grpo(), "terms.entropy.coef"),
            r"no option terms.entropy.coef: the method has no term entropy; take .* entropy_bonus",
        ),
        (lambda: reading.resolve(grpo(), "terms.kl.coef"), "no term kl; give the recipe a beta"),
        (
            lambda: reading.resolve(grpo(beta=0.04), "terms.kl.coeff"),
            r"no option terms.kl.coeff, did you mean terms.kl.coef.*; terms has",
        ),
        (
            lambda: reading.override_all(grpo(), {"loss.foo": 1, "plan.bar": 2, "loss.coef": 1}),
            r"2 options are wrong:\n  loss.foo.*\n  plan.bar",
        ),
        (lambda: reading.resolve(grpo(), "plan.num_minibatche"), "did you mean plan.num_minib"),
        (lambda: reading.resolve(grpo(), "rollout.n"), "rollout.n is here sampling.num_rollouts"),
        (
            lambda: notation.recipe("PPO"),
            "no recipe 'PPO': what TRL or verl call PPO is here gae, ppo_clip; `strop recipes`",
        ),
        (lambda: notation.recipe("ppo"), "no recipe 'ppo': .* is here gae, ppo_clip"),
        (lambda: notation.recipe("SFTTrainer"), "SFTTrainer is here sft, dpo"),
        (lambda: override({}, ["foo=1"]), "no option foo: an option is SECTION.NAME, with"),
        (lambda: override({}, ["foo=bar(1)"]), "no option foo: an option is SECTION.NAME, with"),
        (lambda: override({}, ["method=dapo()"]), "no option method: name the recipe alone"),
        (lambda: override({}, ["model=tiny"]), "it is a section, with model.name, .* more$"),
        (
            lambda: reading.resolve(grpo(), "loss.type"),  # as from Python
            r'loss.type: .* loss_type is here grpo\(aggregation="token-mean"\); terms has',
        ),
        (lambda: catalogue.find("part", "SpreadEvenly"), "did you mean spread_evenly"),
        (
            lambda: check(
                reading.replace_stage(grpo(), "advantage", "spread_evenly[advantage_B: advntage_B]")
            ),
            "spread_evenly reads advntage_B, which no part before it writes, did you mean advantag",
        ),
    ],
)
def test_messages_say_ours(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_options_with_dashes(strop):
    result = strop("train", "--num_generations", "8")
    assert result.code == 2
    assert result.err.startswith("error: No such option: --num_generations: what TRL or verl call ")
    result = strop("train", "--training.steps=3")
    assert "--training.steps: settings are written without --, as training.lr=1e-6" in result.err
    assert strop("eval", "tiny", "data.thinking=off").err.endswith("as --set NAME=VALUE\n")
    assert strop("eval", "tiny", "other").err.endswith("(other)\n")


def test_the_nearest_name_has_the_same_letters_in_any_size():
    assert nearest("REINFORCE", ["rloo", "reinforce_plus_plus"]) == (
        ", did you mean reinforce_plus_plus?"
    )
    assert nearest("clip_Lwo", ["clip_low", "clip_high"]).startswith(", did you mean clip_low or")
