"""Tables: headline numbers, examples, differing settings."""

import re

import pytest
from runs import numbers_in

from strop.report.about import facts, typed
from strop.report.run_folder import Run
from strop.report.sections import sections
from strop.report.tables import (
    differing_settings,
    environments,
    every_number,
    headlines,
    set_by_hand,
    show,
    verdict,
)
from strop.training.settings import config


def run_of(metrics: list[dict] = (), config: str | None = None, **more: object) -> Run:
    rows = [{"step": i + 1, **row} for i, row in enumerate(metrics)]
    return Run("a", *numbers_in(rows), config, (), (), **more)


def rows_of(html: str) -> list[list[str]]:
    """Cells of each body row."""
    found = re.findall(r"<tr><th scope.*?</tr>", html)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in found]


def test_headlines_average_a_tenth_and_take_single_evaluations() -> None:
    metrics = [{"reward": float(i)} for i in range(20)]
    metrics[0] |= {"eval/s/pass@1": 0.25, "eval/s/pass@1/low": 0.2, "eval/s/pass@1/high": 0.3}
    metrics[19] |= {"eval/s/pass@1": 0.125}
    # reward: means of the first and last two values, 0.5 and 18.5
    assert rows_of(headlines([run_of(metrics)])) == [
        ["Reward", "0.5", "18.5", "+18"],
        ["pass@1 on s", "25.0% [20.0%, 30.0%]", "12.5%", "−12.5 pts"],
    ]


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        ((0.1, 0.05, 0.2), (0.5, 0.4, 0.6),
         "rose from 10.0% to 50.0% (95% interval 40.0% to 60.0%) in 2 steps."),
        ((0.5, 0.4, 0.6), (0.1, 0.05, 0.2),
         "fell from 50.0% to 10.0% (95% interval 5.0% to 20.0%) in 2 steps."),
        ((0.1, 0.05, 0.2), (0.2, 0.15, 0.3),
         "was 10.0% and is 20.0% (95% interval 15.0% to 30.0%) after 2 steps: the intervals "
         "overlap, so this shows no change."),
    ],
)  # fmt: skip
def test_the_verdict_says_what_the_intervals_allow(first, last, message) -> None:
    names = ("eval/v/pass@1", "eval/v/pass@1/low", "eval/v/pass@1/high")
    run = run_of([dict(zip(names, each, strict=True)) for each in (first, last)])
    assert verdict(run) == f"pass@1 on v {message}"


def test_a_last_validation_without_a_score_is_told_as_such() -> None:
    first = {"eval/v/pass@1": 0.25, "eval/v/pass@1/low": 0.2, "eval/v/pass@1/high": 0.3}
    run = run_of([{**first, "eval/v/num_unscored": 0.0}, {"eval/v/num_unscored": 8.0}])
    told = "pass@1 on v was 25.0%; the last validation, of 2 steps, has no score."
    assert verdict(run) == told
    assert rows_of(headlines([run])) == [["pass@1 on v", "25.0% [20.0%, 30.0%]", "–", "–"]]


def test_a_run_without_validation_is_told_by_its_reward() -> None:
    said = "The reward in training went from 0.25 to 0.5 in 2 steps, without validation."
    assert verdict(run_of([{"reward": 0.25}, {"reward": 0.5}])) == said
    assert verdict(run_of()) == ""


def test_a_number_of_three_names_stands_once() -> None:
    one = {"eval/v/maj@1": 0.5, "eval/v/mean@n": 0.5, "eval/v/pass@16": 1.0, "eval/v/pass@1": 0.5}
    assert [row[0] for row in rows_of(headlines([run_of([one])]))] == [
        "pass@1 on v",
        "pass@16 on v",
    ]
    other = {**one, "eval/v/mean@n": 0.6}  # of rewards that are not 0 and 1
    assert "mean@n on v" in headlines([run_of([other])])


def test_a_mean_reward_that_is_no_share_is_no_percentage() -> None:
    run = run_of([{"eval/v/pass@1": 0.0, "eval/v/mean@n": value} for value in (-0.4, 0.1)])
    shown = {name: cells for name, *cells in rows_of(headlines([run]))}
    assert shown["mean@n on v"] == ["-0.4", "0.1", "+0.5"]
    assert shown["pass@1 on v"][0] == "0.0%"
    (chart,) = (chart for _, several in sections([run]) for chart in several)
    assert "tickformat" not in chart.layout["yaxis"]


def test_what_a_script_gave_bears_its_name_and_no_path() -> None:
    data, reward = ("/runs/a/given/data.jsonl", "pickled:/runs/a/given/right.pickle")
    text = f'[data]\nfiles = ["{data}"]\n[reward]\nfunctions = ["{reward}", "exact_match"]\n'
    assert facts(text)[1:] == [
        ("Task", "rows given in Python"), ("Rewards", "right (in Python), exact_match")
    ]  # fmt: skip


def test_an_option_has_the_name_that_people_type() -> None:
    known = ["terms.policy.objective.clip_high", "terms.kl.coef", "terms.entropy.coef",
             "phases.late.terms.policy.objective.clip_high"]  # fmt: skip
    assert [typed(path, known) for path in known] == [
        "loss.clip_high", "loss.kl.coef", "loss.entropy.coef", "phases.late.loss.clip_high"
    ]  # fmt: skip


def test_headlines_of_several_runs_leave_gaps() -> None:
    runs = [run_of([{"reward": 1.0}]), run_of([{"entropy": 0.5}, {"entropy": 0.5}])]
    assert rows_of(headlines(runs)) == [
        ["Reward", "1", "1", "–", "–", "–", "–"],
        ["Entropy, nats per token", "–", "–", "–", "0.5", "0.5", "0"],
    ]
    assert headlines([run_of()]) == ""
    named = '<th></th><th colspan="3">a</th>'
    assert named in headlines(runs)
    assert named not in headlines(runs[:1])  # of one run the page has said the name


def test_every_number_lists_first_last_smallest_largest() -> None:
    html = every_number(run_of([{"x<y": 2.0}, {"x<y": 5.0}, {"x<y": 1.0}]))
    assert rows_of(html) == [["x&lt;y", "3", "2", "1", "1", "5"]]


def test_settings_set_by_hand_stand_beside_their_defaults() -> None:
    given = {"recipe": "grpo(clip_high=0.3)", "training": {"steps": 7, "lr": "linear(5e-4, 0)"}}
    stages = {"selection": "drop_truncated_rollouts"}
    options = {"sampling.num_prompts": 8}
    raw = {**config.defaults("tiny"), **given, "stages": stages, "algorithm": options}
    text = config.make(raw).complete().to_toml()
    assert rows_of(set_by_hand(run_of(config=text))) == [
        ["training.steps", "7", "200"],  # what the recipe's own line says is not told again
        ["selection", "drop_truncated_rollouts", "none"],
        ["sampling.num_prompts", "8", "32"],
    ]
    phased = {**config.defaults("tiny"), "recipe": "until(1, grpo) | dapo"}
    text = config.make(phased).complete().to_toml().replace('until = "1"', 'until = "3"')
    text = text.replace('clip_low" = 0.2', 'clip_low" = 0.1')  # in both phases
    assert rows_of(set_by_hand(run_of(config=text))) == [
        ["phases.grpo.loss.clip_low", "0.1", "0.2"],
        ["phases.grpo.until", "3", "1"],  # a phase ends behind its options
        ["phases.dapo.loss.clip_low", "0.1", "0.2"],
    ]
    plain = config.make({**config.defaults("tiny"), "recipe": "grpo"}).complete().to_toml()
    assert set_by_hand(run_of(config=plain)) == "<p>Every setting has its default.</p>"


def test_a_method_from_own_files_is_not_imported_to_be_compared() -> None:
    text = 'recipe = "\\"nowhere.py:mine\\""\nseed = 3\n'
    html = set_by_hand(run_of(config=text))
    assert rows_of(html)[0] == ["seed", "3", "0"]
    assert "not compared here" in html
    broken = set_by_hand(run_of(config="recipe = 'no_such_recipe'"))
    assert "cannot be compared with the defaults" in broken


def test_only_differing_settings_are_listed() -> None:
    first = run_of(config="seed = 1\n[training]\nlr = 1e-4\nsteps = 5\n")
    second = run_of(config="seed = 1\n[training]\nlr = 2e-4\n")
    html = differing_settings([first, second])
    assert rows_of(html) == [["training.lr", "0.0001", "0.0002"], ["training.steps", "5", "–"]]
    assert differing_settings([first, first]) == ""
    unreadable = differing_settings([second, run_of(config="not toml [")])
    assert rows_of(unreadable) == [["seed", "1", "–"], ["training.lr", "0.0002", "–"]]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.123456, "number", "0.123"),
        (1234.56, "number", "1,235"),
        (48000.0, "number", "48,000"),
        (-1e-5, "number", "-1e-05"),
        (0.12345, "percent", "12.3%"),
        (999.7, "number", "1,000"),
        (-0.0003, "percent", "0.0%"),
    ],
)
def test_numbers_are_short(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_the_environment_shows_what_changed_on_the_way() -> None:
    one = {"begun": "day 1", "after_step": 0, "torch": "2.1", "memory_gib": 15.5}
    two = {"begun": "day 2", "after_step": 7, "torch": "2.1", "memory_gib": 31}
    html = environments([run_of(environment=(one, two))])
    assert rows_of(html) == [
        ["Begun", "day 1 → day 2"],
        ["After step", "0 → 7"],
        ["torch", "2.1"],
        ["Memory, GiB", "15.5 → 31"],
    ]
    assert environments([run_of()]) == ""
    beside = environments([run_of(environment=(one,)), run_of(), run_of(environment=({"c": 1},))])
    assert rows_of(beside)[0] == ["Begun", "day 1", "–"]
    assert rows_of(beside)[-1] == ["c", "–", "1"]
