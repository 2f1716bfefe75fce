"""Runs with truncated sampling: how the learner handles it, and what it cannot handle."""

import math

import pytest
from fakes.engine import TableEngine, by_last_token
from models import without_times

from strop.engines.base import CAPABILITIES, Answer, Event, Request
from strop.method.engine_needs import check
from strop.method.part import Draw
from strop.parts.rollout import substitutes
from strop.parts.rollout._unfinished import Group, opened, put_off
from strop.support.errors import UserError
from strop.training.settings import config

GAP = "sampling/sampling_logp_difference/mean"


def raw(lab, mask, recipe="grpo", steps=1, **algorithm):
    found = lab.raw(recipe, reward="even")
    found["training"] |= {"steps": steps, "save_every": 100}
    found["algorithm"] |= {"rollout.sampling_mask": mask, **algorithm}
    return found


def lines_of(runner, settings, folder):
    runner.whole(settings, folder)
    return without_times(folder)


def test_where_nothing_is_cut_the_three_ways_are_the_same_bit_for_bit(lab, runner, tmp_path):
    """The rule is applied, and leaves all."""
    found = {}
    for mask in ("ignore", "weigh", "renormalise"):
        every = {"rollout.top_k": 1000, "plan.num_epochs": 2}
        (line,) = lines_of(runner, raw(lab, mask, **every), tmp_path / mask)
        assert line.pop("correction/mean", 1.0) == 1.0
        assert line.pop("sampling/kept_tokens", 0.0) == 0.0
        found[mask] = line
    assert found["ignore"] == found["weigh"] == found["renormalise"]


def test_learner_and_sampler_agree_over_the_kept_sets_and_the_gradient_is_another(
    lab, runner, tmp_path
):
    found = {}
    for mask in ("ignore", "renormalise"):
        (found[mask],) = lines_of(runner, raw(lab, mask, **{"rollout.top_p": 0.7}), tmp_path / mask)
        assert found[mask][GAP] < 1e-6
    assert 1 <= found["renormalise"]["sampling/kept_tokens"] < 20
    assert found["ignore"]["reward"] == found["renormalise"]["reward"]  # the same draws
    norms = [line["grad_norm"] for line in found.values()]
    assert abs(math.log(norms[0] / norms[1])) > 0.01


def test_cuts_that_change_over_a_run_are_learnt_from_at_each_step(lab, runner, tmp_path):
    """One step cuts nothing, the next one does; the learner's policy is the sampler's in both."""
    cuts = {"rollout.top_p": "points(((0.5, 1), (1, 0.6)))", "rollout.min_p": "linear(0, 0)"}
    for mask in ("weigh", "renormalise"):
        lines = lines_of(runner, raw(lab, mask, steps=2, **cuts), tmp_path / mask)
        kept = [line.get("sampling/kept_tokens", 0.0) for line in lines]
        weights = [line.get("correction/mean", 1.0) for line in lines]
        assert (kept[0], weights[0]) == (0, 1)
        assert kept[1] >= 1 if mask == "renormalise" else weights[1] != 1
        assert mask == "weigh" or max(line[GAP] for line in lines) < 1e-6


def test_a_run_of_a_shell_goes_on_as_if_it_had_not_stopped(strop, lab, tmp_path):
    """Answers that are left unfinished, with their sets, are in its checkpoint."""
    words = ("rollout.min_p=0.3", "rollout.sampling_mask=renormalise", "training.token_budget=24")
    words = ("train", "april_partial_rollout", *lab.arguments(*words))
    for name, *more in (("whole",), ("half", "training.steps=1")):
        result = strop(*words, *more, "--out", tmp_path / name)
        assert result.code == 0, result.err
    result = strop("train", "--resume", tmp_path / "half", "training.steps=3")
    assert result.code == 0, result.err
    whole, resumed = (without_times(tmp_path / name)[-1] for name in ("whole", "half"))
    assert whole == pytest.approx(resumed, rel=0, abs=0, nan_ok=True)
    assert 1 <= whole["sampling/kept_tokens"] < 20


def test_an_engine_that_cannot_tell_is_refused():
    settings = {"recipe": "grpo", "algorithm": {"rollout.top_p": 0.9}}
    engine = TableEngine(by_last_token({}))
    engine.capabilities = CAPABILITIES - {"kept"}
    for mask in ("ignore", "weigh"):
        settings["algorithm"]["rollout.sampling_mask"] = mask
        check(config.make(settings).build().uses(), engine, "vllm")
    settings["algorithm"]["rollout.sampling_mask"] = "renormalise"
    with pytest.raises(
        UserError, match=r"needs 'kept' \(sampling_mask=renormalise\), and .*'vllm'"
    ):
        check(config.make(settings).build().uses(), engine, "vllm")


def test_an_answer_that_is_put_off_keeps_its_sets():
    events = (
        Event(
            0, (5, 6), (-1.0, -2.0), 3, (-1.0, -2.0), (0.5, 0.7), kept=(b"\5\0\0\0\6\0\0\0", b"")
        ),
        Event(0, (7,), (-1.0,), 4, (-1.5,), (0.5,)),
    )
    group = Group(Draw(2, 1, {"prompt_ids": (1, 2)}), [Answer(Request((1, 2), 9, seed=4), events)])
    again = opened(put_off(group, 0), None, lambda ids, seed: Request(ids, 9, seed=seed))
    (answer,) = again.answers
    assert answer.events == events


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("grpo", {"sampling_mask": "drop"}, "ignore"),
        ("rollout_correction", {"sampling_mask": "weigh"}, "correction weigh_by_engine_ratio"),
        ("rollout_correction_bypass", {"sampling_mask": "weigh"}, "applied twice"),
        ("dpo", {"sampling_mask": "weigh"}, "has none"),
        ("rover", {"sampling_mask": "renormalise"}, "which is of the whole vocabulary"),
        ("lp_reg", {"sampling_mask": "renormalise"}, "scores tokens"),
        ("archer", {"sampling_mask": "renormalise"}, "keeps rollouts in files"),
    ],
)
def test_what_cannot_be_is_refused(recipe, options, message):
    settings = {"recipe": recipe, "algorithm": {"rollout.top_p": 0.9}}
    settings["algorithm"] |= {f"rollout.{name}": value for name, value in options.items()}
    if recipe == "archer":
        settings["data"] = {"task": "corridor"}
    with pytest.raises(UserError, match=message):
        config.make(settings).build()
    if options["sampling_mask"] in ("weigh", "renormalise") and recipe != "dpo":
        settings["algorithm"]["rollout.top_p"] = 1.0  # nothing is cut
        config.make(settings).build()


def test_the_way_is_part_of_the_method_and_survives_its_file():
    settings = {"recipe": "grpo", "algorithm": {"rollout.sampling_mask": "weigh"}}
    settings["algorithm"]["rollout.top_p"] = 0.9
    method = config.make(settings).build()
    (term,) = method.terms
    assert term.correction.label == "weigh_by_kept_mass"
    again = config.make(config.make(settings).complete().model_dump()).build()
    assert again == method
    settings["algorithm"]["rollout.sampling_mask"] = "renormalise"
    part = config.make(settings).build().rollout.part
    assert [rule.k for rule in part.rules()[:1]] == [512]  # of a set that is recorded
    assert part.needs == {"rules", "kept"}
    scoring = substitutes.scoring(part)  # any engine can
    assert scoring.rules() == part.rules()
    assert scoring.needs == {"rules"}
