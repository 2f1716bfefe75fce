"""A taskset of verifiers: answers should have an even number of digits.

Its environment is the plain one, of a single agent, with the harness that the test selects:
verifiers' own `null`, a program that uv installs, or the one below, which works in the server.
"""

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult


class DigitsData(vf.TaskData):
    fails: str = ""


class DigitsTask(vf.Task[DigitsData]):
    @vf.reward(weight=2.0)
    async def even(self, trace: vf.Trace) -> float:
        if self.data.fails == "reward":
            raise ValueError("no reward for it")
        return float(sum(c.isdigit() for c in trace.last_reply) % 2 == 0)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns


class Digits(vf.Taskset[DigitsTask]):
    def load(self):
        for number in range(4):
            yield DigitsTask(DigitsData(prompt=f"say {number}"), self.config.task)


class TwoTurnsConfig(HarnessConfig):
    pass


class TwoTurns(Harness[TwoTurnsConfig]):
    """Asks twice, from within the server."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        if data.fails == "harness":
            raise RuntimeError("the harness broke")
        messages = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            for more in ("and now?", None):
                said = await client.chat.completions.create(model=ctx.model, messages=messages)
                messages.append({"role": "assistant", "content": said.choices[0].message.content})
                if more:
                    messages.append({"role": "user", "content": more})
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Digits", "TwoTurns"]
