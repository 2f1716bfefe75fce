"""Episodes that OpenEnv's own server plays, over its own protocol."""

import json

import pytest
from openenv_process import serving

from strop.environments.base import source_of
from strop.environments.episodes import CallLimits, Episodes
from strop.environments.tasks import load_task
from strop.support.exits import Exit


@pytest.fixture(scope="module")
def url():
    with serving("server.py") as place:
        yield place


def played(url, seeds, retries=0, **options):
    return Episodes(source_of(f"openenv:{url}", options), seeds, limits=CallLimits(retries))


def test_episodes_of_a_task(url):
    task = load_task(f"openenv:{url}", num_train=5, num_validation=2, num_heldout=1)
    assert [prompt.prompt for prompt in task.train] == ["0-9:"] * 5
    assert task.train[3].columns["seed"] == 3


def test_sessions_at_once_and_a_reward_at_the_end(url):
    episodes = played(url, (1, 12, 23))
    assert [shown.text for shown in episodes.reset()] == ["0-9:"] * 3
    first = episodes.step([0, 1, 2], ["1", "7", "8"])
    assert [(o.reward, o.done, o.text) for o in first] == [
        (1.0, True, ""), (0.0, False, ":1="), (0.0, False, ":1="),
    ]  # fmt: skip
    second = episodes.step([1, 2], ["2", "9"])
    assert [(o.reward, o.done, o.text) for o in second] == [(1.0, True, ""), (0.0, False, ":2=")]
    (last,) = episodes.step([2], ["9"])
    assert (last.reward, last.done, last.exit) == (0.0, True, None)
    episodes.close()


def test_a_session_that_is_full_says_so_and_one_that_ends_makes_room(url):
    held = played(url, range(4))
    held.reset()
    (full,) = (late := played(url, (9,))).reset()
    assert full.exit is Exit.START_FAILED
    assert "CAPACITY_REACHED" in full.why
    late.close()
    held.close()
    (now,) = (again := played(url, (9,), 3)).reset()
    assert now.text == "0-9:"
    again.close()


def test_what_raises_there_ends_its_episode_and_what_has_no_reward_is_unscored(url):
    episodes = played(url, (1, 2))
    episodes.reset()
    crashed, mute = episodes.step([0, 1], ["crash", "mute"])
    assert crashed.exit is Exit.ENVIRONMENT_CRASH
    assert "EXECUTION_ERROR" in crashed.why
    assert "it broke" in crashed.why
    assert (mute.done, mute.exit, mute.exit.is_policys) == (True, Exit.DECLARED, False)
    episodes.close()


def test_whole_actions_fields_and_options_of_a_reset(url):
    episodes = played(url, (4, 4), action="*", reset={"opening": "go:"})
    assert [shown.text for shown in episodes.reset()] == ["go:"] * 2
    refused, right = episodes.step(
        [0, 1], [json.dumps({"word": "4"}), json.dumps({"text": "4", "speed": 2})]
    )
    assert (refused.valid, refused.reward, refused.done) == (False, -1.0, False)
    assert "VALIDATION_ERROR" in refused.text
    assert (right.reward, right.done) == (1.0, True)
    assert episodes.step([0], ["no json"])[0].valid is False
    episodes.close()


def test_the_same_seed_gives_the_same_episode(url):
    one, two = [played(url, (7,)) for _ in range(2)]
    for episodes in (one, two):
        episodes.reset()
    for action in ("1", "2", "7"):
        assert one.step([0], [action]) == two.step([0], [action])
    one.close()
    two.close()
