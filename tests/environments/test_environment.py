"""Names of environments, their options, many episodes at once, and errors that stop a run."""

import re
import time

import pytest

from strop.environments.base import Environment, EnvironmentSource, Observation, built_in, source_of
from strop.environments.episodes import CallLimits, Episodes, is_transient
from strop.environments.tasks import load_task
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.support.http import Failed
from strop.training.settings import config

OWN = """
from strop.environments.base import Environment, Observation


class Echo(Environment):
    max_turns, max_tokens, reward_range = 3, 5, (0.0, 3.0)

    def __init__(self, word="a", fail=""):
        self.word, self.fail = word, fail

    def reset(self, seed):
        self.turns = 0
        if self.fail == "reset" and seed >= 2:
            raise KeyError("no such level")
        return Observation("" if self.fail == "empty" else f"say {self.word} {seed}")

    def step(self, action):
        self.turns += 1
        if action == "boom":
            raise IndexError("list index out of range")
        if action == "wrong":
            return "text"
        if action == "nan":
            return Observation("x", reward=float("nan"))
        return Observation("again", float(action == self.word), done=self.turns == 3)

    def columns(self):
        if self.fail == "clash":
            return {"answer": "a", "completions": "b"}
        return {}[self.fail] if self.fail == "columns" else {}


class Together(Echo):
    calls = []

    @classmethod
    def step_all(cls, environments, actions):
        cls.calls.append(list(actions))
        answers = [each.step(action) for each, action in zip(environments, actions)]
        return answers[1:] if "lose one" in actions else answers


class Plain:
    pass


class Counted(Echo):
    made = closed = 0

    def __init__(self, word="a", fail=""):
        super().__init__(word, fail)
        if fail == "third" and Counted.made == 2:
            raise OSError("no more of them")
        Counted.made += 1
        self.is_open = True

    def close(self):
        assert self.is_open
        self.is_open = False
        Counted.closed += 1
        if self.fail == "close":
            raise OSError("stuck")


class Leaves(Echo):
    async def close(self):
        return None


class NoStep(Environment):
    def reset(self, seed):
        return Observation("x")


class NoReset(Environment):
    def step(self, action):
        return Observation("x")


class AllAtOnce(NoStep):
    @classmethod
    def step_all(cls, environments, actions):
        return [Observation("x", done=True) for _ in actions]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_what_a_name_means(file):
    assert {"calculator", "corridor", "hide_and_guess"} <= set(built_in())
    assert source_of("corridor", {"size": 5}) == EnvironmentSource("corridor", {"size": 5})
    assert source_of("environment:corridor") == source_of("corridor")
    assert source_of(f"environment:{file}:Echo") == EnvironmentSource(f"{file}:Echo")
    assert source_of("some.package:Game") == EnvironmentSource("some.package:Game")
    for other in ("countdown", "reasoning_gym:chain_sum", "corridors"):
        assert source_of(other) is None
    with pytest.raises(UserError, match=r"no environment 'coridor' \(did you mean 'corridor'\?\)"):
        source_of("environment:coridor")
    with pytest.raises(UserError, match=r"^the options: no environment 'coridor'"):
        config.make({"data": {"task": "environment:coridor"}})


def test_a_task_has_one_prompt_an_episode(file):
    task = load_task(f"{file}:Echo", config={"word": "b"}, num_train=3, num_validation=2)
    assert [p.prompt for p in task.train] == ["say b 0", "say b 1", "say b 2"]
    assert [p.prompt for p in task.validation] == ["say b 1000000000", "say b 1000000001"]
    assert [p.uid for p in task.train] == [p.columns["seed"] for p in task.train] == [0, 1, 2]
    assert len(task.heldout) == 100
    assert (task.rewards, task.max_tokens, task.reward_range) == ((), 15, (0.0, 3.0))
    assert task.environment == EnvironmentSource(f"{file}:Echo", {"word": "b"})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Echo", {"wrod": 1}, r"refuses data.task_config.*it has word, fail"),
        ("Echo", {"fail": "reset"}, r"own.py:Echo failed at reset with the seed 2: KeyError"),
        ("Echo", {"fail": "empty"}, r"seed 0: TypeError: began with an episode that is over, or"),
        (
            "Echo",
            {"fail": "columns"},
            r"Echo failed at the columns of the seed 0: KeyError: .*own.py",
        ),
        ("Echo", {"fail": "clash"}, r"own.py:Echo: columns\(\) has a column 'completions', a name"),
        ("Plain", {}, r"is no environment: derive the class from strop.environments.base"),
        ("Absent", {}, r"has no Absent"),
        ("NoStep", {}, r"environment .*own.py:NoStep has no method step\(action\), which gives"),
        ("NoReset", {}, r"environment .*own.py:NoReset has no method reset\(seed\), which gives"),
        ("Leaves", {}, r"own.py:Leaves: close is an async def, which nothing awaits: make it a"),
    ],
)
def test_mistakes_show_before_a_run(file, name, options, message):
    with pytest.raises(UserError, match=message):
        load_task(f"{file}:{name}", config=options)


def test_limits_must_be_positive(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        OWN.replace(
            "max_turns, max_tokens, reward_range = 3", "max_turns, max_tokens, reward_range = 0"
        )
    )
    with pytest.raises(UserError, match="max_turns is 0; make it an int from 1"):
        load_task(f"{path}:Echo")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("boom", "the action 'boom' in the episode of the seed 7: IndexError: list index"),
        ("wrong", "the action 'wrong' in the episode of the seed 7: TypeError: gave str instead"),
        ("nan", "seed 7: TypeError: gave the reward nan"),
    ],
)
def test_an_environment_that_fails_ends_its_episode_and_says_why(file, action, message):
    episodes = Episodes(EnvironmentSource(f"{file}:Echo"), [4, 7])
    episodes.reset()
    well, failed = episodes.step([0, 1], ["a", action])
    assert (well.exit, failed.exit) == (None, Exit.ENVIRONMENT_CRASH)
    assert (failed.done, failed.truncated) == (False, True)
    assert re.search(message, failed.why)
    assert episodes.step([1], ["a"]) == [failed]


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Answers(Environment):
    """Which answers with what it was made with, or raises it."""

    def __init__(self, answer):
        self.answer = answer

    def reset(self, seed):
        return Observation("here")

    def step(self, action):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (SystemExit(2), r"ItExited: it called sys.exit\(2\)"),
        (Unspeakable(), "Unspeakable, which cannot be written as text"),
        (Observation("a", measures=None), "AttributeError"),
        (Observation("a", state=3), "TypeError: gave 3 as state"),
        (Observation("a", done=True, why=3), "TypeError: gave 3 as why"),
        (Observation("\ud800"), r"TypeError: gave '\\ud800' as text"),
        (Observation("a", role="b"), "TypeError: gave 'b' as role"),
        (Observation("a", 1e39), "TypeError: gave the reward 1e"),
        (Observation("a", 10**400), "TypeError: gave the reward 1000"),
        (Observation("a", done="no"), "TypeError: gave 'no' as done: give true or false"),
        (Observation("a", measures={"speed": "fast"}), "gave the measures {'speed': 'fast'}"),
    ],
)
def test_whatever_comes_in_place_of_an_answer_ends_one_episode(answer, message):
    episodes = Episodes(EnvironmentSource("corridor"), [1], Answers(answer))
    (shown,) = episodes.step([0], ["a"])
    assert shown.exit is Exit.ENVIRONMENT_CRASH
    assert re.search(message, shown.why)


class Silent(Environment):
    """Whose second turn shows nothing; with several players it is the second one's first."""

    def __init__(self, rewrites=False, roles=()):
        self.rewrites, self.roles = rewrites, roles

    def reset(self, seed):
        self.turn = 0
        return Observation("here")

    def step(self, action):
        self.turn += 1
        return Observation("", role=self.turn % max(len(self.roles), 1), done=self.turn == 3)


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, [None] * 3), ({"rewrites": True}, [Exit.ENVIRONMENT_CRASH] * 3),
     ({"roles": (0, 1)}, [Exit.ENVIRONMENT_CRASH] * 3)],
)  # fmt: skip
def test_a_turn_that_shows_nothing_else_needs_a_text(options, ends):
    episodes = Episodes(EnvironmentSource("corridor"), [1], Silent(**options))
    episodes.reset()
    shown = [episodes.step([0], ["a"])[0] for _ in range(3)]
    assert [each.exit for each in shown] == ends
    assert all("gave no text to a turn that shows nothing else" in each.why
               for each in shown if each.exit)  # fmt: skip


class Refused(Exception):
    def __init__(self, **about):
        vars(self).update(about)


class TransportError(Exception):
    """As that of httpx, by its name."""


def test_errors_that_another_try_may_mend():
    again = [ConnectionResetError(), TimeoutError(), TransportError(), Refused(transient=True),
             Refused(status_code=503), Refused(response=Refused(status_code=429)),
             Failed("busy", again=True)]  # fmt: skip
    never = [ValueError(), Refused(status_code=404), Refused(code=5), Failed("no"), OSError()]
    assert list(map(is_transient, again + never)) == [True] * 7 + [False] * 5
    assert [is_transient(raised_from(error)) for error in again + never] == [True] * 7 + [False] * 5


def raised_from(error):
    wrapped = RuntimeError("the agent's own")
    wrapped.__cause__ = error
    return wrapped


@pytest.mark.parametrize(("num_failures", "exit"), [(2, None), (3, Exit.UNREACHABLE)])
def test_what_fails_for_the_moment_is_called_again(monkeypatch, num_failures, exit):
    waits, left = [], [num_failures]
    monkeypatch.setattr(time, "sleep", waits.append)

    class Server(Environment):
        def step(self, action):
            if left[0]:
                left[0] -= 1
                raise ConnectionError("busy")
            return Observation("there", 1.0, done=True)

        def reset(self, seed):
            return Observation("here")

    episodes = Episodes(EnvironmentSource("corridor"), [1], Server(), CallLimits(2))
    (shown,) = episodes.step([0], ["a"])
    assert (shown.exit, shown.done, waits) == (exit, exit is None, [0.25, 0.5])


def test_long_actions_are_shortened_in_errors(file):
    class Fails(Environment):
        def reset(self, seed):
            return Observation("x")

        def step(self, action):
            raise ValueError("no")

    episodes = Episodes(EnvironmentSource(f"{file}:Echo"), [0], Fails())
    (shown,) = episodes.step([0], ["y" * 500])
    assert "y" * 80 + "...'" in shown.why
    assert "y" * 81 not in shown.why


def test_episodes_are_stepped_together_where_the_class_can(file):
    episodes = Episodes(EnvironmentSource(f"{file}:Together"), [0, 1, 2])
    assert [o.text for o in episodes.reset()] == ["say a 0", "say a 1", "say a 2"]
    answers = episodes.step([2, 0], ["a", "b"])
    assert [o.reward for o in answers] == [1.0, 0.0]
    assert type(episodes.environments[0]).calls == [["a", "b"]]
    assert [each.turns for each in episodes.environments.values()] == [1, 0, 1]
    assert episodes.step([], []) == []
    lost = "step_all over 2 episodes (seeds 0, 1): ValueError: step_all gave 1 answers to 2 actions"
    assert [lost in shown.why for shown in episodes.step([0, 1], ["a", "lose one"])] == [True] * 2
    (shown,) = episodes.step([2], ["boom"])
    assert (shown.exit, "IndexError" in shown.why) == (Exit.ENVIRONMENT_CRASH, True)


def counted(file, **options):
    source = EnvironmentSource(f"{file}:Counted", options)
    with source.opened() as one:
        kind = type(one)
    kind.made = kind.closed = 0
    return source, kind


def test_one_environment_reads_all_prompts_and_is_closed(file):
    _, kind = counted(file)
    task = load_task(f"{file}:Counted", num_train=30, num_validation=20, num_heldout=0)
    assert (len(task.train), len(task.validation), len(task.heldout)) == (30, 20, 0)
    assert (kind.made, kind.closed) == (1, 1)


def test_every_environment_is_closed_once_as_soon_as_its_episode_is_over(file):
    source, kind = counted(file)
    episodes = Episodes(source, [0, 1, 2])
    episodes.reset()
    assert (kind.made, kind.closed) == (3, 0)
    for _ in range(3):
        episodes.step([1], ["a"])
    assert [each.is_open for each in episodes.environments.values()] == [True, False, True]
    episodes.close()
    episodes.close()
    assert (kind.made, kind.closed) == (3, 3)


def test_one_that_cannot_be_made_costs_its_own_episode(file):
    source, kind = counted(file, fail="third")
    episodes = Episodes(source, [0, 1, 2])
    *others, failed = episodes.reset()
    assert (failed.exit, "no more of them" in failed.why) == (Exit.START_FAILED, True)
    assert [shown.exit for shown in others] == [None, None]
    episodes.close()
    assert (kind.made, kind.closed) == (2, 2)


def test_a_close_that_fails_is_told_by_name(file):
    episodes = Episodes(EnvironmentSource(f"{file}:Counted", {"fail": "close"}), [5])
    with pytest.warns(UserWarning, match="failed at close after the seed 5: OSError: stuck"):
        episodes.close()
    with pytest.warns(UserWarning, match="Counted failed at close: OSError: stuck"):
        task = load_task(f"{file}:Counted", num_train=2, config={"fail": "close"})
    assert len(task.train) == 2


def test_a_class_that_steps_all_needs_no_step(file):
    assert Episodes(EnvironmentSource(f"{file}:AllAtOnce"), [0]).step([0], ["a"])[0].done
