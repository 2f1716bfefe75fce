"""Words of TRL and verl are answered with ours, from the table that the docs show."""

import re

import pytest

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
        ("beta", "grpo(beta=0.04), then terms.kl.coef, or rloo(beta=0.05), paid by the reward"),
        ("kl_coef", "rloo(beta=0.05), paid by the reward"),
        ("algorithm.kl_ctrl.kl_coef", "rloo(beta=0.05), paid by the reward"),
        ("actor_rollout_ref.rollout.n", "sampling.num_rollouts"),
        ("max_completion_length", "rollout.max_tokens"),
        ("training.learning_rate", "training.lr, a number or a schedule"),
        ("model.path", "model.name, --model"),
        ("clip_ratio_high", "loss.clip_high"),
        ("norm_adv_by_std_in_grpo", "grpo(normalize_std=False)"),
    ],
)
def test_a_peers_option_is_answered_with_ours(word, ours):
    written = word.strip("-").replace("-", "_")
    assert peers.ours(word) == f": what TRL or verl call {written} is {ours} here"


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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: override({}, ["num_generations=8"]),
            "no option num_generations: what .* num_generations is sampling.num_rollouts here",
        ),
        (lambda: override({}, ["kl_coef=0.1"]), "no option kl_coef: .* is rloo"),
        (
            lambda: config.make({"training": {"learning_rate": 1}}),
            "no option training.learning_rate: .* is training.lr, a number",
        ),
        (
            lambda: notation.recipe("grpo(num_generations=8)"),
            "grpo has no parameter num_generations: .* is sampling.num_rollouts here; it has",
        ),
        (
            lambda: reading.resolve(grpo(), "loss.epsilon_high"),
            "no option loss.epsilon_high: .* is loss.clip_high here; terms has",
        ),
        (lambda: reading.resolve(grpo(), "rollout.n"), "rollout.n is sampling.num_rollouts"),
        (
            lambda: notation.recipe("PPO"),
            "no recipe 'PPO': what TRL or verl call PPO is gae, ppo_clip here; `strop recipes`",
        ),
        (lambda: notation.recipe("ppo"), "no recipe 'ppo': .* is gae, ppo_clip here"),
        (lambda: notation.recipe("SFTTrainer"), "SFTTrainer is sft, dpo here"),
        (lambda: notation.recipe("GRPO"), "no recipe 'GRPO', did you mean grpo"),
        (lambda: notation.recipe("Dr_GRPO"), "no recipe 'Dr_GRPO', did you mean dr_grpo"),
        (lambda: catalogue.find("part", "SpreadEvenly"), "did you mean spread_evenly"),
        (
            lambda: check(
                reading.replace_stage(grpo(), "advantage", "spread_evenly[advantage_B: advntage_B]")
            ),
            "spread_evenly reads advntage_B, which no part before it writes, did you mean advantag",
        ),
    ],
)
def test_messages_say_ours(call, said):
    with pytest.raises(UserError, match=said):
        call()


def test_options_with_dashes(strop):
    said = strop("train", "--num_generations", "8")
    assert said.code == 2
    assert said.err.startswith("error: No such option: --num_generations: what TRL or verl call ")
    said = strop("train", "--training.steps=3")
    assert "--training.steps: settings are written without --, as training.lr=1e-6" in said.err


def test_the_nearest_name_has_the_same_letters_in_any_size():
    assert nearest("REINFORCE", ["rloo", "reinforce_plus_plus"]) == (
        ", did you mean reinforce_plus_plus?"
    )
    assert nearest("clip_Lwo", ["clip_low", "clip_high"]).startswith(", did you mean clip_low or")
