"""The four limits of a run, from the task, the rollout part, the settings and the model."""

import dataclasses
import json

import pytest

from strop.data.prompts import Prompt
from strop.environments.base import EnvironmentSource
from strop.environments.tasks import Task
from strop.method import reading
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.read_answers import ReadAnswers
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError
from strop.training.services.texts import Limits, resolve
from strop.training.step import train_step

TASK = Task("sums", (), (), (), (), max_tokens=12)
# eight actions of one token in characters; the task's own number is their product
CORRIDOR = Task("corridor", (), (), (), (), max_tokens=8, environment=EnvironmentSource(
    "corridor", {"style": "compact"}))  # fmt: skip


def limits(rollout, task=TASK, context=50, **settings):
    return dataclasses.astuple(resolve(rollout, task, context, **settings))


@pytest.mark.parametrize(
    ("rollout", "settings", "expected"),
    [
        (SampleIndependently(), {}, (12, 12, 38, 50, 12)),
        (SampleIndependently(max_tokens=20), {}, (20, 20, 30, 50, 20)),
        (SampleIndependently(), {"max_prompt_tokens": 10}, (12, 12, 10, 50, 12)),
        (SampleIndependently(), {"max_prompt_tokens": 40}, (12, 12, 38, 50, 12)),
        # a given answer has the room that its own prompt leaves
        (ReadAnswers(), {"longest_given": 7}, (7, 7, 49, 50, 1)),
        (ReadAnswers(max_tokens=9), {"longest_given": 0}, (9, 9, 49, 50, 1)),
    ],
)
def test_answers(rollout, settings, expected):
    assert limits(rollout, **settings) == expected


def test_episodes():
    environment = CORRIDOR.environment.make()
    turns, action = environment.max_turns, environment.max_tokens
    whole = turns * action
    assert limits(PlayTurns(), CORRIDOR, 500) == (action, whole, 500 - whole, 500, whole)
    assert limits(PlayTurns(max_tokens=30), CORRIDOR, 500)[:2] == (action, 30)
    assert limits(PlayTurns(max_action_tokens=5), CORRIDOR, 500)[:2] == (5, 5 * turns)
    more = PlayTurns(max_turns=3, max_action_tokens=5, extension=2)
    assert limits(more, CORRIDOR, 500) == (5, 25, 475, 500, 25)


def test_episodes_without_room_are_told_the_most_of_all_their_actions():
    with pytest.raises(UserError, match=r"set rollout\.max_tokens=50, of all actions of an ep"):
        resolve(PlayTurns(max_action_tokens=20, max_turns=9), CORRIDOR, 100)
    part = PlayTurns(max_action_tokens=20, max_turns=9, max_tokens=50)
    assert limits(part, CORRIDOR, 100)[:3] == (20, 50, 50)


def test_a_context_without_room_is_refused():
    with pytest.raises(
        UserError, match=r"context of 12 tokens leaves no prompt .*max_tokens=12"
    ) as e:
        resolve(SampleIndependently(), TASK, 12)
    assert str(e.value).endswith("set rollout.max_tokens=6")  # which leaves 6 for a prompt
    assert resolve(SampleIndependently(max_tokens=6), TASK, 12).prompt_tokens == 6
    with pytest.raises(UserError, match=r"9 tokens long, .* set rollout.max_tokens=3, shorten"):
        resolve(SampleIndependently(max_tokens=6), TASK, 12).check_prompt(Prompt(5, "", {}), 9)
    assert resolve(SampleIndependently(), TASK, 13).prompt_tokens == 1


def test_a_limit_takes_no_schedule():
    part = SampleIndependently(max_tokens=reading.value("linear(4, 8)"))
    with pytest.raises(UserError, match=r"rollout.max_tokens is one number for a whole run"):
        resolve(part, TASK, 50)


@pytest.mark.parametrize(
    ("prompt_tokens", "expected"),
    [
        (
            3,
            r"prompt 5 is 4 tokens long, the limit is 3 \(context 13 minus max_tokens 10: "
            r"set rollout\.max_tokens=9, shorten",
        ),
        (2, r"prompt 5 is 4 tokens long, the limit is 2 \(raise data\.max_prompt_tokens, shorten"),
    ],
)
def test_a_prompt_that_is_too_long_says_which_limit(prompt_tokens, expected):
    found = Limits(10, 10, prompt_tokens, 13, 10)
    found.check_prompt(Prompt(5, "", {}), prompt_tokens)
    with pytest.raises(UserError, match=expected):
        found.check_prompt(Prompt(5, "", {}), 4)


def test_every_service_reads_the_same_numbers(lab, runner, tmp_path):
    run = runner.start(lab.raw(data={"max_prompt_tokens": 9}), tmp_path / "run")
    services = run.world.services
    assert services.limits == Limits(6, 6, 9, 64, 6)
    assert (services.sampling.answer_tokens, services.sampling.episode_tokens) == (6, 6)
    assert services.sampling.context_tokens == services.scoring.context_tokens == 64
    for room, most in ((40, 40), (100, 64)):  # an engine's, which the model does not fill
        services.sampling.engine.longest = room
        assert (services.sampling.context_tokens, services.scoring.context_tokens) == (most, 64)
    assert int(run.world.run_columns(run.algorithm, 1)["max_length"]) == 6


def test_a_limit_that_a_control_moves_is_refused(lab, runner, tmp_path):
    """The run has made room for one number; a knob that changed it would do nothing else."""
    run = runner.start(lab.raw(), tmp_path / "run")
    state = {"knobs": {"rollout.sample_independently.max_tokens": 5}}
    with pytest.raises(UserError, match=r"max_tokens was moved to 5: it is 6 for the whole run"):
        train_step(run.world, run.algorithm, state, 1)


def test_a_row_that_is_left_out_sets_no_limit(lab, runner, tmp_path):
    rows, path = [(f"{n}+1=", f"{n}") for n in range(4)], tmp_path / "rows.jsonl"
    rows.append(("1+1=", "2" * 61))  # 62 tokens with the last one, behind a prompt of 4
    lines = [json.dumps({"prompt": prompt, "completion": given}) for prompt, given in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    data = {"files": [str(path)], "validation_size": 0, "overlong": "drop"}
    given = {"rollout.max_tokens": 0, "sampling.num_rollouts": 1}
    world = runner.start(lab.raw("sft", data=data, algorithm=given), tmp_path / "run").world
    assert len(world.pool) == 4
    assert world.services.limits == world.limits[0] == Limits(2, 2, 63, 64, 1)
