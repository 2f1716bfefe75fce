"""The doctor's findings in runs, rows, rewards and endpoints, checked by hand."""

from types import SimpleNamespace

import pytest

from strop.data.prompts import Prompt
from strop.diagnosis.data import _reward_finding, facts, fits, lines
from strop.diagnosis.endpoint import _gives
from strop.diagnosis.finding import shortened
from strop.diagnosis.run import RunFiles, cut_off, ends, loss, mismatch, order
from strop.diagnosis.signal import entropy, groups, uniform_prompts
from strop.method.part import EARLIER
from strop.parts.curation._store import STORED


def said(*lines):
    return order(RunFiles([{"step": i + 1, **line} for i, line in enumerate(lines)], {}, []))


def test_each_step_once_is_in_order():
    found = said({"num_tokens": 5}, {"num_tokens": 5}, {"num_tokens": 9})
    assert found.status == "ok"
    assert found.answer.startswith("Steps 1 to 3 are there once each")


def test_faults_of_the_order_are_named():
    found = order(RunFiles([{"step": n} for n in (1, 2, 2, 5)], {}, []))
    assert "written more than once: step 2" in found.answer
    assert "missing: step 3, 4" in found.answer
    assert "num_tokens falls at step 2" in said({"num_tokens": 5}, {"num_tokens": 4}).answer


def test_groups_that_the_store_gives_back_in_their_own_step_are_new():
    def row(step, draw, uid=7):
        return {"step": step, "uid": uid, "draw": draw}

    steps = [{"step": n, "data/epoch": 0.25 * n} for n in (1, 2)]
    drawn = [row(1, 0), row(1, STORED, 8), row(1, STORED + EARLIER, 9)]
    replayed = [row(2, STORED, 8), row(2, EARLIER, 6), row(2, 2 * STORED + EARLIER, 5)]
    found = order(RunFiles(steps, {}, [*drawn, *replayed]))
    assert "the 3 stored rollouts comes twice within an epoch, without 3 of groups" in found.answer
    twice = order(RunFiles(steps, {}, [*drawn, *replayed, row(2, 2 * STORED)]))
    assert "prompts twice in one epoch: uid 7." in twice.answer


def test_an_epoch_that_jumps_is_named_and_an_even_one_is_not():
    even = [{"data/epoch": 0.25 * n, "data/rollouts_sampled": 8} for n in range(1, 9)]
    assert said(*even).status == "ok"
    jumped = [*even[:5], *(line | {"data/epoch": line["data/epoch"] + 2} for line in even[5:])]
    assert "data/epoch jumps at step 6" in said(*jumped).answer
    smaller = [{**line, "data/rollouts_sampled": 10 - n} for n, line in enumerate(even)]
    assert said(*smaller).status == "ok"  # groups of fewer answers to as many prompts
    refilled = [{"data/epoch": 0.1 * n, "data/rollouts_sampled": 8} for n in (1, 2, 3, 4, 8, 9)]
    refilled[4]["data/rollouts_sampled"] = 32
    assert said(*refilled).status == "ok"
    wider = [{**line, "phase": 1.0} for line in even[:4]]
    wider += [{**each, "data/epoch": n, "phase": 2.0} for n, each in enumerate(even[:4], 2)]
    assert said(*wider).status == "ok"  # a phase with more prompts a step


def test_shares_of_ends_are_means_over_steps():
    lines = [
        {"step": 1, "exit/token_limit": 0.5},
        {"step": 2, "exit/token_limit": 0.25},
        {"step": 3},
    ]
    found = ends(RunFiles(lines, {}, []))
    assert found.numbers == {"exit/token_limit": pytest.approx(0.25)}
    assert (found.status, found.advice) == ("ok", "")
    outside = ends(RunFiles([{"step": 1, "exit/unreachable": 0.01}], {}, []))
    assert (outside.status, outside.advice[:19]) == ("note", "environment, server")
    raised = ends(RunFiles([{"step": 1, "exit/environment_crash": 0.5}], {}, []))
    assert (raised.status, "column exit_why" in raised.advice) == ("problem", True)
    assert "machines" not in raised.advice


def test_the_lowest_entropy_is_named():
    lines = [{"step": n, "entropy": value} for n, value in enumerate((1.0, 0.25, 0.5), 1)]
    assert "(lowest 0.250)" in entropy(RunFiles(lines, {}, [])).answer


def test_a_long_text_is_cut_to_its_width():
    assert shortened("word " * 40, 20) == "word word word wo..."
    assert shortened("a\n b", 3) == "a b"


def test_prompts_without_signal_stand_by_how_often_and_by_which_share():
    equal, mixed = (0.0, 0.0), (0.0, 1.0)
    drawn = {1: [equal, mixed], 2: [equal], 3: [equal, equal], 4: [mixed]}
    rows = [
        {"step": step, "uid": uid, "draw": 0, "prompt": "p", "scored": True, "reward": reward}
        for uid, groups in drawn.items()
        for step, rewards in enumerate(groups)
        for reward in rewards
    ]
    told = [(each["uid"], each["uniform"], each["groups"]) for each in uniform_prompts(rows)]
    assert told == [(3, 2, 2), (2, 1, 1), (1, 1, 2)]


def test_two_draws_of_a_prompt_in_one_step_are_two_groups():
    rows = [
        {"step": 1, "uid": 7, "draw": draw, "prompt": "p", "scored": True, "reward": float(draw)}
        for draw in (0, 0, 1, 1)
    ]
    assert [(each["uniform"], each["groups"]) for each in uniform_prompts(rows)] == [(2, 2)]


@pytest.mark.parametrize(
    ("advantage", "norm", "status", "words"),
    [
        (0.4, 2.0, ("ok", "note"), "these groups teach too"),  # one rollout a prompt
        (0.0, 0.0, ("problem", "problem"), "advantages are 0; so is the gradient."),
        (0.0, 0.1, ("problem", "problem"), "only other terms of the loss move the weights"),
    ],
)
def test_equal_rewards_are_a_fault_where_nothing_is_learned_from_them(
    advantage, norm, status, words
):
    line = {"frac_reward_zero_std": 1.0, "advantage/abs_mean": advantage, "grad_norm": norm}
    lines = [{"step": n, "loss": 0.5, "learning_rate": 1.0, **line} for n in (1, 2)]
    found = loss(RunFiles(lines, {}, [])), groups(RunFiles(lines, {}, []))
    assert tuple(each.status for each in found) == status
    assert any(words in each.answer for each in found)
    still = [each | {"groups/frac_rollouts_with_gradient": 0.0} for each in lines]
    assert "teach too" not in groups(RunFiles(still, {}, [])).answer


def test_episodes_that_fail_are_not_called_cut_off():
    lines = [{"step": 1, "completions/clipped_ratio": 0.5, "exit/environment_crash": 0.49}]
    assert cut_off(RunFiles(lines, {}, [])).status == "ok"


def test_late_updates_move_the_policy() -> None:
    line = {"sampling/sampling_logp_difference/mean": 0.2}
    lines = [{**line, "step": n, "updates/of_policy": float(n)} for n in range(1, 7)]
    found = mismatch(RunFiles(lines, {}, []))
    assert (found.status, found.numbers["updates a step"]) == ("note", 5.5)


@pytest.mark.parametrize(("cause", "limit"), [("turn", "max_turns"), ("token", "max_tokens")])
def test_the_limit_that_cuts_is_the_one_to_raise(cause, limit):
    lines = [
        {"step": n, "completions/clipped_ratio": 0.5, f"exit/{cause}_limit": 0.5} for n in (1, 2)
    ]
    found = cut_off(RunFiles(lines, {}, []))
    assert found.status == "problem"
    assert limit in found.advice.partition(", or")[0]


def test_an_endpoint_is_what_its_best_route_is():
    text, tokens = ({"choices": [choice]} for choice in ({"text": "a"}, {"token_ids": [3]}))
    assert "are unknown" in _gives({"/a": text, "/b": tokens}, {}).answer
    assert "Text alone" in _gives({"/a": text, "/b": None}, {}).answer


def test_rows_that_are_too_long_are_left_out_where_some_are_not():
    settings = SimpleNamespace(data=SimpleNamespace(max_prompt_tokens=0, overlong="drop"))
    assert [fits(settings, found, 10, 4).status for found in ([6, 7], [7, 7], [5, 6])] == [
        "note", "problem", "ok"
    ]  # fmt: skip


def test_a_reward_that_is_the_same_for_all_answers_is_noted():
    def told(*scores):
        kinds = ("empty", "reference")
        return _reward_finding([
            {"reward": "r", "answer": kind, "scores": each, "failures": []}
            for kind, each in zip(kinds, scores, strict=True)
        ]).answer  # fmt: skip

    assert told([1.0, 1.0], [1.0, 1.0]) == "Every dummy answer has the same score."
    assert told([-2.0, None], [-1.0, None]) == "No reference answer scores above 0."
    assert told([0.0, 0.0], [1.0, 1.0]) != "Every dummy answer has the same score."


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_each_of_several_rewards_is_judged_by_itself(order):
    scores = {"right": [0.0, 1.0], "form": [1.0, 1.0], "boxed": [0.5, 0.0]}
    names = [list(scores)[place] for place in order]
    found = _reward_finding([
        {"reward": name, "answer": kind, "scores": [score], "failures": []}
        for name in names for kind, score in zip(("empty", "reference"), scores[name], strict=True)
    ])  # fmt: skip
    assert found.status == "note"
    assert "form: Every dummy answer has the same score." in found.answer
    assert "boxed: No reference answer scores above 0." in found.answer
    assert "right" not in found.answer
    assert "another score" in found.advice
    assert "a form around it" in found.advice


def test_the_first_prompts_that_differ_are_shown():
    prompts = [Prompt(uid, text, {}) for uid, text in enumerate(["a", "a", "b", "a", "c", "d"])]
    assert [row["prompt"] for row in facts("mine", prompts)["first"]] == ["a", "b", "c"]


def test_a_value_that_one_row_of_many_lacks_is_told():
    prompts = [Prompt(uid, str(uid), {"answer": uid or None, "unit": "m"}) for uid in range(300)]
    assert "answer (1 missing), unit" in lines(facts("mine", prompts), [])[0]
