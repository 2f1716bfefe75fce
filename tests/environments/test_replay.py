"""Recorded trajectories as episodes: matches, patches, rewards, invalid files."""

import json

import pytest

from strop.environments.base import EnvironmentSource
from strop.environments.replay import Judged, Replay, step_reward
from strop.environments.tasks import load_task
from strop.support.errors import UserError

ROWS = [
    {"prompt": "Buy tea", "steps": [
        {"observation": "shop", "action": "click tea"},
        {"observation": "basket", "action": "click pay"},
        {"observation": "card", "action": "type 123"},
    ]},
    {"steps": [{"observation": "home", "action": '<tool_call>{"name": "open", "arguments": '
                '{"app": "mail"}}</tool_call>'}]},
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "expert.jsonl"
    path.write_text("".join(json.dumps(row) + "\n\n" for row in ROWS), encoding="utf-8")
    return str(path)


def play(file, actions, seed=0, **options):
    """(text, reward, done, match) of each action."""
    episode = Replay(file, **options)
    episode.reset(seed)
    return [(o.text, pytest.approx(o.reward), o.done, o.match) for o in map(episode.step, actions)]


def test_the_experts_actions_lead_through_the_recording(file):
    first = Replay(file).reset(0)
    assert first.text == "Buy tea\nshop"
    found = play(file, ["click tea", " click  pay ", "type 123"], eps_patch=0, rewrites=False)
    assert found == [
        ("basket", 1.0, False, True),
        ("card", 1.0, False, True),
        ("", 1.0, True, True),
    ]
    shown = ["Buy tea\nshop\nclick tea\nbasket",
             "Buy tea\nshop\nclick tea\nbasket\n click  pay \ncard", ""]  # fmt: skip
    whole = play(file, ["click tea", " click  pay ", "type 123"], eps_patch=0)
    assert whole == [(text, *rest) for text, (_, *rest) in zip(shown, found, strict=True)]


def test_the_experts_action_stands_in_the_place_of_a_wrong_one(file):
    (first, *_), (second, *_), _ = play(
        file, ["click {observation}", "click pay", "x"], eps_patch=2
    )
    assert first == "Buy tea\nshop\nclick tea\nbasket"
    assert second == "Buy tea\nshop\nclick tea\nbasket\nclick pay\ncard"
    own = play(file, ["click tea", "click pay"], earlier="[{observation}: {action}] ")
    assert own[1][0] == "Buy tea\n[shop: click tea] [basket: click pay] card"
    for options in ({"earlier": "{action}"}, {"earlier": "{observation}"}, {"patch": "no"}):
        with pytest.raises(UserError, match="must show"):
            Replay(file, **options)


def test_a_wrong_action_is_patched_while_patches_are_left(file):
    shown = "The right action was: click pay\ncard"
    found = play(file, ["click tea", "click back", "press"], rewrites=False)
    assert found == [
        ("basket", 1.0, False, True),
        (shown, 0.5, False, False),
        ("", 0.1, True, False),
    ]
    assert play(file, ["press"], eps_patch=0) == [("", 0.1, True, False)]
    twice = play(file, ["press", "press"], eps_patch=1)
    assert [done for _, _, done, _ in twice] == [False, True]
    assert not any(done for _, _, done, _ in play(file, ["press", "press"], eps_patch=-1))


def test_states_tell_patched_histories_apart(file):
    one, other = Replay(file), Replay(file)
    one.reset(0)
    other.reset(0)
    assert one.step("click tea").state != other.step("press").state
    one, other = (
        Replay(file, eps_patch=2, rewrites=False),
        Replay(file, eps_patch=2, rewrites=False),
    )
    one.reset(0)
    other.reset(0)
    one.step("click tea")
    other.step("press")  # takes a patch
    assert one.step("press").state != other.step("press").state


def test_calls_are_compared_as_calls(file):
    call = '<tool_call>{"arguments": {"app": "%s"}, "name": "%s"}</tool_call>'
    for action, wanted in (
        ("I see. " + call % ("mail", "open"), (1.0, True)),
        (call % ("notes", "open"), (0.5, False)),
        (call % ("mail", "close"), (0.1, False)),
        ("open mail", (0.0, False)),
    ):
        ((_, reward, done, match),) = play(file, [action], seed=1)
        assert (reward, match) == wanted
        assert done


@pytest.mark.parametrize(
    ("judged", "paper", "code"),
    [
        (Judged(True, True, True), 1.0, 1.0),
        (Judged(True, True, False), 0.5, 0.55),
        (Judged(True, False, False), 0.1, 0.19),
        (Judged(False, True, True), 0.0, 0.0),
    ],
)
def test_rewards_of_steps(judged, paper, code):
    assert step_reward(judged, "paper") == pytest.approx(paper)
    assert step_reward(judged, "code") == pytest.approx(code)


def test_as_a_task(file):
    source = "strop.environments.replay:Replay"
    task = load_task(source, config={"file": file}, num_validation=1)
    assert [row.prompt for row in task.train] == ["Buy tea\nshop", "home"]
    assert [row.columns["num_steps"] for row in task.train] == [3, 1]
    assert [row.prompt for row in task.validation] == ["Buy tea\nshop"]
    assert EnvironmentSource(source, {"file": file}).make().max_turns == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"steps": []}', 'line 1 must have "steps"'),
        ('{"steps": [{"observation": "a"}]}', 'line 1 must have "steps"'),
        ("[]", 'line 1 must have "steps"'),
        ("\n", "has no rows"),
    ],
)
def test_files_that_are_none(tmp_path, text, message):
    path = tmp_path / "own.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Replay(str(path))


def test_options_are_checked(file, tmp_path):
    for options, message in (
        ({"eps_patch": -2}, "eps_patch"),
        ({"scoring": "own"}, "scoring 'own' is none of paper, code"),
        ({"patch": "no"}, "patch must show {action}"),
    ):
        with pytest.raises(UserError, match=message):
            Replay(file, **options)
    with pytest.raises(UserError, match="cannot read"):
        Replay(str(tmp_path / "missing.jsonl"))
