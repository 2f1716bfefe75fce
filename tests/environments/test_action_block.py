import pytest

from strop.data.tool_calls import read_action
from strop.environments import Environment, Observation
from strop.environments.action_block import INSTRUCTION, ActionBlock
from strop.environments.base import EnvironmentSource
from strop.environments.built_in.corridor import Corridor
from strop.environments.episodes import Episodes
from strop.environments.tool_environment import ToolEnvironment
from strop.support.errors import UserError

PLAIN = {"environment": "corridor", "options": {"size": 3}}


def test_only_the_block_reaches_the_environment():
    ours, inner = ActionBlock(**PLAIN), Corridor(size=3)
    first = inner.reset(4)
    assert ours.reset(4).text == INSTRUCTION + first.text
    assert ours.max_turns == inner.max_turns
    assert ours.max_tokens == inner.max_tokens + 64
    for action in ("left", "take", "right", "open"):
        said = f"<switch>KEEP</switch><subgoal>not {action}</subgoal><action>{action}</action>"
        assert ours.step(said) == inner.step(action)


def test_without_a_block_all_of_it_is_given_and_not_understood():
    ours, inner = ActionBlock(**PLAIN), Corridor(size=3)
    ours.reset(4), inner.reset(4)
    found, plain = ours.step("<action>left"), inner.step("left")
    assert plain.valid
    assert not found.valid
    assert (found.text, found.state) == (plain.text, plain.state)


def test_tags_of_one_character():
    options = {"style": "compact"}
    ours = ActionBlock("hidden_number", options, ("*", "/"), 6, "")
    assert ours.reset(0).text == "1,9="
    assert ours.max_tokens == 6
    assert ours.step("(1)+3-*5/").state in ("1,4", "6,9", "1,9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": ("<action>",)}, "tags takes two texts"),
        ({"max_tokens": -1}, "max_tokens must be a whole number"),
        ({"options": {"cells": 3}}, "environment corridor refuses"),
        ({"environment": "coridor"}, r"no environment 'coridor' \(did you mean 'corridor'\?\)"),
        ({"environment": 5}, "environment takes the name of an environment"),
        ({"options": [3]}, "options its options, they are 'corridor' and"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(UserError, match=message):
        ActionBlock(**options)


class Shop(ToolEnvironment):
    """Costs of fruits."""

    def question(self, seed: int) -> str:
        return "What costs a plum?"

    def tools(self):
        return [self.price]

    def price(self, name: str) -> int:
        """Looks up a price.

        Args:
            name: of the fruit
        """
        return {"plum": 4}[name]

    def judge(self, answer: str) -> float:
        return float(answer == "4")


def test_tools_are_handed_on_and_called_from_the_block():
    source = EnvironmentSource(
        "strop.environments.action_block:ActionBlock", {"environment": f"{__name__}:Shop"}
    )
    assert [tool.name for tool in source.tools()] == ["price"]
    ours = source.make()
    ours.reset(0)
    call = '<tool_call>{"name": "price", "arguments": {"name": "plum"}}</tool_call>'
    found = ours.step(read_action(f"<switch>KEEP</switch><action>{call}</action>", "hermes"))
    assert [(each.status, each.text) for each in found.answers] == [("ok", "4")]
    assert found.valid
    alone = ours.step(read_action(call, "hermes"))
    assert (alone.answers[0].status, alone.valid) == ("ok", False)
    last = ours.step(read_action("<subgoal>5</subgoal><action>Answer: 4</action>", "hermes"))
    assert (last.reward, last.done) == (1.0, True)


class Duel(Environment):
    """Two players in turn."""

    roles = (0, 1)

    def reset(self, seed):
        self.number = 0
        return Observation("begin", role=0)

    def step(self, action):
        self.number += 1
        return Observation(action, role=self.number % 2, done=self.number == 4)


def test_every_player_is_instructed_once_and_keeps_its_role():
    ours = ActionBlock(f"{__name__}:Duel")
    assert ours.roles == (0, 1)
    shown = [ours.reset(0), *(ours.step(f"<action>{n}</action>") for n in range(4))]
    assert [each.role for each in shown] == [0, 1, 0, 1, 0]
    assert [each.text.startswith(INSTRUCTION) for each in shown] == [True, True, *[False] * 3]
    assert [each.text.removeprefix(INSTRUCTION) for each in shown] == ["begin", *"0123"]


class Echo(Environment):
    """What is said comes back, awaited."""

    async def reset(self, seed):
        return Observation(f"{seed}:")

    async def step(self, action):
        return Observation(f"<{action}>", float(len(action)), done=True)


class Together(Environment):
    """Which has no step of its own."""

    def reset(self, seed):
        return Observation("a")

    @classmethod
    def step_all(cls, environments, actions):
        return [Observation("b", done=True) for _ in actions]


def test_one_that_is_awaited_inside_is_awaited():
    place = "strop.environments.action_block:ActionBlock"
    source = EnvironmentSource(place, {"environment": f"{__file__}:Echo", "instruction": "go "})
    assert source.is_asynchronous
    assert not EnvironmentSource(place, PLAIN).is_asynchronous
    episodes = Episodes(source, [4, 5])
    assert [shown.text for shown in episodes.reset()] == ["go 4:", "go 5:"]
    response, bare = episodes.step([0, 1], ["x<action>up</action>", "up"])
    assert (response.text, response.reward, response.valid) == ("<up>", 2.0, True)
    assert (bare.text, bare.valid) == ("<up>", False)
    episodes.close()
    with pytest.raises(UserError, match="Together steps many episodes at once, and has no step"):
        EnvironmentSource(place, {"environment": f"{__file__}:Together"}).make()
