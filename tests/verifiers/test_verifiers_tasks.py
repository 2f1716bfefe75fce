"""A task's rewards over a trace of strop, compared with verifiers' own rewards of the rollout."""

import asyncio
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")  # verifiers and its imports warn

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.configs.agent import AgentConfig  # noqa: E402
from verifiers.v1.graph import MessageNode  # noqa: E402
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask  # noqa: E402
from verifiers.v1.types import AssistantMessage, Usage, UserMessage  # noqa: E402

from strop.rewards.function import load_reward  # noqa: E402
from strop.rewards.scored import Rollouts  # noqa: E402
from strop.rewards.source import RewardSpec  # noqa: E402
from strop.rewards.traces import NotThere  # noqa: E402
from strop.rewards.traces import Trace as Ours  # noqa: E402

ANSWERS = [("41 ", 3, False), ("a long one", 9, True)]  # text, tokens, cut off


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns

    @vf.metric
    async def several(self, trace: vf.Trace) -> None:
        trace.record_metrics({"cut": trace.is_truncated, "errors": len(trace.errors)})
        return {}

    @vf.reward(weight=2.0, priority=1)
    async def right(self, trace: vf.Trace) -> float:
        flags = (trace.ok, trace.is_completed, trace.has_error, trace.is_timeout, trace.last_error)
        assert flags == (True, True, False, False, None)
        assert trace.stop_condition == "agent_completed"
        return float(trace.last_reply == str(self.data.answer)) + trace.metrics["turns"]

    @vf.reward(weight=-0.1)
    async def long(self, trace: vf.Trace) -> dict[str, float]:
        assert trace.usage.completion_tokens == trace.num_output_tokens
        trace.record_reward("words", len(trace.transcript.split()), weight=0.25)
        noted = trace.rewards["words"]
        assert (noted.weight, noted.value) == (0.25, noted.score / 4)
        return {"tokens": trace.num_output_tokens, "so_far": trace.reward + trace.num_branches}


def theirs(text: str, num_tokens: int, cut: bool, data: SumData) -> Any:
    """The trace that verifiers has of one answer of its own default agent."""
    nodes = [
        MessageNode(message=UserMessage(content=data.prompt)),
        MessageNode(message=AssistantMessage(content=text), parent=0, sampled=True),
    ]
    call = ModelCall(
        node=1, finish_reason="length" if cut else "stop",
        usage=Usage(prompt_tokens=4, completion_tokens=num_tokens),
    )  # fmt: skip
    trace = Trace(
        task=TraceTask(type="SumTask", data=data), agent=AgentInfo(config=AgentConfig()),
        nodes=nodes, calls=[call], ok=True,
    )  # fmt: skip
    trace.stop("agent_completed")
    return trace


def test_a_task_scores_as_in_verifiers() -> None:
    reward = load_reward(RewardSpec("sum", f"{__name__}:SumTask"))
    texts, tokens, cut = zip(*ANSWERS, strict=True)
    rollouts = Rollouts(
        range(2), ["40+1="] * 2, texts, [[5] * count for count in tokens],
        {"answer": [41, 41]}, 0, truncated=cut,
    )  # fmt: skip
    scored = reward(rollouts)
    data = SumData(prompt="40+1=", answer=41)
    for row, answer in enumerate(ANSWERS):
        trace = theirs(*answer, data)
        asyncio.run(SumTask(data).score(trace))
        assert scored.scores[row] == pytest.approx(trace.reward)
        found = {name.partition("/")[2]: values[row] for name, values in scored.extra.items()}
        wanted = {name: each.score for name, each in trace.rewards.items()} | trace.metrics
        assert found == pytest.approx(wanted)
    assert not scored.unscored


def test_every_field_is_there_or_refused_by_name() -> None:
    """What verifiers' trace has, strop's has with the same value, or says that it has not."""
    data = SumData(prompt="40+1=", answer=41)
    for text, count, cut in ANSWERS:
        real = theirs(text, count, cut, data)
        mine = Ours.of(data.prompt, text, {"answer": 41}, count, cut)
        lacking = set()
        names = {*Trace.model_fields, *(n for n in dir(Trace) if not hasattr(vf.TaskData, n))}
        for name in sorted(name for name in names if not name.startswith("_")):
            try:
                found = getattr(mine, name)
            except NotThere:
                lacking.add(name)
                continue
            value = getattr(real, name)
            if isinstance(value, str | int | float | bool | type(None)):
                assert found == value, name
        assert lacking == {
            "add_semantic_edges", "agent", "branches", "calls", "clear_preview", "extra_usage",
            "id", "mm_token_type_id_map", "nodes", "notify", "num_input_tokens",
            "num_total_tokens", "pending", "preview", "record_error", "record_judge_call",
            "record_timeout", "request_rewrites", "response_rewrites", "root_reply",
            "serialize_mm_token_type_id_map", "split_agent_time", "stop", "timing", "to_record",
            "tools", "verifiers", "version", "watch",
        }  # fmt: skip
