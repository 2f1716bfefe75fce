"""The best checkpoint stays, and a run that finds nothing better ends; both across a resume."""

import numpy as np
import pytest
from models import without_times

from strop import Run as Opened
from strop.api.inference import checkpoint_of
from strop.report.about import best_of
from strop.report.page import write_report
from strop.report.run_folder import Run, read_run
from strop.report.watch import State, state_of
from strop.support.errors import UserError
from strop.training import loop
from strop.training.record import checkpoint
from strop.training.record.best import Race
from strop.training.settings import config

NAME = "eval/validation/pass@1"
SCORES = (0.9, 0.2, 0.5, 0.4, 0.5, 0.3, 0.6, 0.1)  # by step; the first is before training


class Quiet:
    begin = step = note = lambda self, *_: None


def settings(lab, **training):
    own = {"steps": 7, "save_every": 0, "rollouts_every": 0, "keep_checkpoints": 1, "best": NAME}
    return lab.raw(training={**own, "patience": 3, **training},
                   evaluation={"every": 1, "num_samples": 1})  # fmt: skip


def go(run, scores=SCORES, until=99):
    """The rest of a run whose validations find these scores."""

    def scored(world, algorithm, split, prompts):
        return {f"eval/{split}/pass@1": scores[run.done]}

    for _ in loop.steps(run, Quiet(), scored):
        run.stop_asked = run.done == until
    run.close()


def test_a_checkpoint_before_the_first_step_is_pruned_as_any_other(tmp_path):
    """Where there is no best step, and where the best one is another."""
    for best in (0, 1):
        for step in range(4):
            (tmp_path / f"step-{step:06d}").mkdir(exist_ok=True)
        checkpoint.prune(tmp_path, 2, best)
        kept = [checkpoint.step_of(place) for place in checkpoint.complete(tmp_path)]
        assert kept == ([1] if best else []) + [2, 3]


def kept(folder):
    return [checkpoint.step_of(place) for place in checkpoint.complete(folder / "checkpoints")]


def test_the_best_stays_and_the_run_ends_early(lab, runner, tmp_path):
    """0.5 of step 2 stays in front of steps 3, 4 (a tie) and 5, behind which it ends."""
    folder = tmp_path / "run"
    run = runner.start(settings(lab), folder)
    go(run)
    assert (run.done, run.finished, run.race.step, run.race.since) == (5, True, 2, 3)
    assert "3 validations in a row, none better than step 2" in run.race.why_over
    assert kept(folder) == [2, 5]
    assert checkpoint_of(str(folder), 0, best=True)[1].endswith("step-000002")
    assert (Opened(folder).finished, Opened(folder).best_step) == (True, 2)
    page = write_report([folder], tmp_path / "page.html").read_text()
    assert f"<dt>Best checkpoint</dt><dd>step 2 · {NAME} 0.5</dd>" in page
    told = state_of(read_run(folder), active=False)
    assert told == State("complete, ended early after 5 steps: nothing better since step 2", 0)
    assert state_of(read_run(folder), active=True).wait > 0
    whole = without_times(folder)

    again = runner.resume(folder)  # nothing goes on by itself
    assert again.finished
    go(again)
    assert without_times(folder) == whole
    more = runner.resume(folder, training={"patience": 4})
    go(more)
    assert (more.done, more.race.step) == (7, 6)
    assert kept(folder) == [6, 7]


def test_a_run_that_was_broken_off_keeps_the_same(lab, runner, tmp_path):
    go(runner.start(settings(lab), tmp_path / "whole"))
    folder = tmp_path / "run"
    go(runner.start(settings(lab), folder), until=4)
    assert kept(folder) == [2, 4]
    run = runner.resume(folder)
    assert (run.race.step, run.race.since) == (2, 2)
    go(run)
    assert without_times(folder) == without_times(tmp_path / "whole")
    assert kept(folder) == [2, 5]


def test_the_lowest_may_be_the_best_and_no_score_is_never(lab):
    race = Race(config.make(settings(lab, best_is="lowest")))
    found = [race.take(step, {NAME: value}) for step, value in enumerate((0.5, 0.6, 0.4), 1)]
    assert found == [True, False, True]
    assert not race.take(4, {"eval/validation/num_unscored": 8.0})
    assert not race.take(5, {NAME: None})
    assert not race.take(6, {"reward": 0.1})  # no validation: nothing is counted
    assert (race.step, race.since, race.over) == (3, 2, False)


def test_a_first_validation_without_the_number_is_refused_with_the_nearest(lab):
    """Every summary counts what it left unscored; a set without any score has that count alone."""
    race = Race(config.make(settings(lab, best="eval/validation/pass@3")))
    counts = {"eval/validation/num_unscored": 0.0, "eval/hard/num_unscored": 2.0}
    scored = {**counts, "eval/validation/auc": 0.5, "eval/validation/pass@1": 0.5}
    with pytest.raises(UserError, match=r"pass@3 is no number .*; it has eval/validation/pass@1, "):
        race.check(scored)
    race.check({"eval/validation/num_unscored": 8.0, "eval/hard/pass@1": 0.5})
    Race(config.make(settings(lab, best="eval/hard/pass@1"))).check(scored)


@pytest.mark.parametrize(("which", "step", "value"), [("highest", 2, 0.6), ("lowest", 3, 0.4)])
def test_the_page_finds_the_same_in_the_numbers(which, step, value):
    at = np.arange(5)  # what is there before training is no step
    numbers = {NAME: (at, np.array([0.9, 0.5, 0.6, 0.4, 0.5]))}
    text = f'[training]\nbest = "{NAME}"\nbest_is = "{which}"\npatience = 3\n'
    found = best_of(Run("run", numbers, 4, text, (), ()))
    assert found == (NAME, step, value, 4 - step, 3)
    assert not found.ended_early


@pytest.mark.parametrize(
    ("training", "evaluation", "why"),
    [
        ({"best": ""}, {}, "training.patience waits for a better training.best"),
        ({"best": "reward"}, {}, "training.best=reward must be a number of a validation"),
        ({}, {"every": 0}, "evaluation.every be above 0"),
        ({"best": "eval/validation/pass@9"}, {}, "is no number of the validation; it has eval/v"),
    ],
)
def test_what_cannot_be_the_best_is_refused_before_step_1(
    training, evaluation, why, lab, runner, tmp_path
):
    raw = settings(lab, **training)
    raw["evaluation"] |= evaluation
    with pytest.raises(UserError, match=why):
        go(runner.start(raw, tmp_path / "run"))
