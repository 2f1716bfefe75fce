"""Rewards from factories, such as those of TRL, and from the tasks of verifiers."""

import dataclasses

import pytest
from test_reward_forms import chat, load, rollouts
from verifiers_stand_in import write_verifiers

from strop.rewards.forms import form_of
from strop.rewards.scored import Rollouts
from strop.rewards.source import reward_name
from strop.rewards.traces import Trace, marked
from strop.support.errors import UserError


@pytest.fixture(autouse=True)
def files(loads_here):
    return loads_here


FACTORIES = """
class Limit:
    __name__ = "limit_reward"
    def __init__(self, most, margin):
        self.most, self.margin = most, margin
    def __call__(self, completion_ids, **kwargs):
        return [float(len(ids) > self.most) + self.margin for ids in completion_ids]

def get_limit(most: int, margin: float = 0.5):
    if most < 1:
        raise ValueError(f"most must be positive, got {most}")
    return Limit(most, margin)

def constant():
    return lambda completions, **kwargs: [7.0] * len(completions)

def right(completions, **kwargs):
    return [1.0] * len(completions)

def needs(completions):
    return [1.0]
"""


@pytest.mark.parametrize("place", ["factories.py", "factories", "trl:factories.py"])
def test_a_factory_makes_the_reward(files, place):
    (files / "factories.py").write_text(FACTORIES)
    source = f"{place}:get_limit(most=2, margin=0.25)"
    assert reward_name(source) == "get_limit"
    reward = load(source)
    assert reward.caller.form == "trl"
    ids = Rollouts([0, 1], ["p"] * 2, ["a", "b"], [[1, 2], [1, 2, 3]], {}, 0, ())
    assert reward(ids).scores == [0.25, 1.25]
    assert load(f"{place}:constant()")(ids).scores == [7.0, 7.0]
    assert load(f"{place}:Limit(most=2, margin=0)")(ids).scores == [0.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("get_limit(mots=2)", "TypeError: .*'mots'.*it has the options most, margin"),
        ("get_limit()", "TypeError: .*missing 1 required positional argument: 'most'"),
        ("get_limit(most=0)", r"ValueError: most must be positive, got 0 .*factories.py:11"),
        ("get_limit(2)", "options are written option=value"),
        ("get_limit(most=open)", "cannot read its options"),
        ("get_limit(most=2, most=3)", "an option stands twice"),
        ("right(completions=[1])", "right returned list, it must return a reward function"),
        ("gett_limit(most=2)", r"no function 'gett_limit' \(did you mean 'get_limit'\?\)"),
        ("Limit", "is a class without a reward: mark methods with @vf.reward .* Limit"),
    ],
)
def test_a_factory_is_refused_with_the_reason(files, call, message):
    (files / "factories.py").write_text(FACTORIES)
    with pytest.raises(UserError, match=message):
        load(f"factories.py:{call}")


TASKS = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: int
    scale: float = 2.0

class Base(vf.Task[Data]):
    @vf.reward(weight=0.5)
    async def right(self, trace):
        assert trace.task.data is self.data and trace.messages[0].content == self.data.prompt
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward
    def dropped(self, trace):
        return 100.0

    @vf.metric
    async def length(self, trace):
        return len(trace.transcript)

class Sum(Base):
    def dropped(self, trace):
        return 100.0

    @vf.reward(weight=2.0)
    async def parts(self, task, trace):
        if trace.last_reply == "bad":
            raise ValueError("cannot be read")
        return {"one": task.scale, "two": trace.num_turns}

class Runs(vf.Task[Data]):
    @vf.reward
    async def ran(self, trace, runtime):
        return 1.0

class Plain:
    def __init__(self, data):
        self.data = data

    def reward(self, trace):
        return self.data.level * len(trace.assistant_messages)

async def plugged(task, trace):
    return float(task.answer == trace.last_reply)

def tokens(trace):
    return trace.num_output_tokens + 10 * trace.is_truncated + getattr(trace, "cost", 100)

def timed(trace):
    return trace.timing.agent.duration
"""


@pytest.fixture
def tasks(files):
    write_verifiers(files)
    (files / "tasks.py").write_text(TASKS)


@pytest.mark.usefixtures("tasks")
def test_a_task_of_verifiers_sums_its_rewards_over_a_trace():
    reward = load("tasks.py:Sum")
    assert (reward.caller.form, reward.rows_are_independent) == ("verifiers", True)
    scored = reward(rollouts([" 4 ", "bad", "5"], answer=["4", "4", "4"]))
    # 0.5 * right + 2 * (scale + turns); what overrides without the mark does not count
    assert scored.scores == [0.5 + 2 * (2.0 + 1), None, 2 * (2.0 + 1)]
    assert list(scored.unscored) == [1]
    assert scored.extra["Sum/right"] == [1.0, None, 0.0]
    assert scored.metrics["rewards/Sum/two"] == 1.0
    assert scored.extra["Sum/length"][2] == len("[user]\np\n\n[assistant]\n5")
    scaled = reward(rollouts(chat("4"), scale=[3], ground_truth=[4]))
    assert scaled.scores == [0.5 + 2 * (3.0 + 1)]
    mixed = reward(rollouts(["4", "4"], scale=[3, None], answer=[4, 4]))  # of two files
    assert mixed.scores == [0.5 + 2 * (3.0 + 1), 0.5 + 2 * (2.0 + 1)]


@pytest.mark.usefixtures("tasks")
def test_a_task_without_its_column_or_with_a_runtime_is_refused():
    with pytest.raises(UserError, match="needs the parameter 'answer' and the data has no column"):
        load("tasks.py:Sum").check(["scale"])
    with pytest.raises(UserError, match="ran needs 'runtime', and strop has the task's data and"):
        load("tasks.py:Runs")


@pytest.mark.usefixtures("tasks")
def test_a_function_of_a_trace_and_a_class_without_the_package():
    assert load("tasks.py:plugged")(rollouts(["4", "5"], answer=["4", "4"])).scores == [1.0, 0.0]
    assert load("tasks.py:Plain")(rollouts(["4", "5"], level=[1.5, 2])).scores == [1.5, 2.0]
    given = dataclasses.replace(
        rollouts(["4", "55"]), completion_ids=[[4], [5, 5]], truncated=[False, True]
    )
    assert load("tasks.py:tokens")(given).scores == [101, 112]
    with pytest.raises(UserError, match=r"^a trace of verifiers has no timing here: strop has "):
        load("tasks.py:timed")(given)
    assert form_of({"completions", "trace", "answer"}, "f") == "trl"


def test_a_trace_knows_the_last_message_and_the_models_last_one():
    prompt = [{"role": "system", "content": "add"}, {"role": "user", "content": "1+1"}]
    said = [{"role": "assistant", "content": " 2 "}, {"role": "tool", "content": "right"}]
    trace = Trace.of(prompt, said, {})
    assert trace.last_message.content == "right"
    assert (trace.last_reply, trace.num_turns) == ("2", 1)
    assert [message.content for message in trace.tool_messages] == ["right"]


def test_methods_of_a_higher_priority_come_first_and_equal_ones_by_name():
    def of(priority):
        def method(self):
            return 0.0

        method.reward, method.reward_priority = True, priority
        return method

    kind = type("Kind", (), {"b": of(0), "a": of(0), "first": of(2), "last": of(-1), "plain": len})
    assert marked(kind, "reward") == ["first", "a", "b", "last"]
