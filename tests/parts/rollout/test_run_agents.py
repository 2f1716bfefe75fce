"""An agent's calls become a rollout: contexts, rewards, exits, draws of their own."""

import pytest
import torch
from fakes.engine import TableEngine
from fakes.services import FakeAgents, over_table, rolled_out

from strop.method.part import Draw
from strop.parts.rollout.run_agents import RunAgents
from strop.serving.protocol import ModelCall
from strop.support.errors import UserError
from strop.support.exits import Exit

PIECES = dict(enumerate("0123456789"))
DRAWS = (Draw(0, 2), Draw(1, 3))


def even(tokens: list[int]) -> list[float]:
    """Any digit but 0 is as likely as another; 9 ends."""
    return [0.0, *[1 / 9] * 9]


def played(
    agents: FakeAgents, part: RunAgents | None = None, engine=TableEngine, **options: object
):
    engine = engine(even, text=lambda ids: "".join(map(str, ids)))
    services = over_table(engine, {0: (1, 2), 1: (3,)}, pieces=PIECES, **options)
    services.agents = agents
    rng = torch.Generator().manual_seed(0)
    return rolled_out(part or RunAgents(max_tokens=4), DRAWS, engine, services, rng)


def agents(**options: object) -> FakeAgents:
    return FakeAgents(lambda uid: ((1, 2), (3,))[uid], **options)


def test_calls_that_go_on_are_one_context() -> None:
    rolled = played(agents(value={"reward": 0.5, "turns": 2.0}))
    batch = rolled.batch
    assert batch["rollout_K"].tolist() == [0, 1, 2, 2, 3, 3, 4, 4]
    assert batch["sequence_T"][batch["rollout_T"] == 2].unique().numel() == 1
    assert batch["reward_K"].tolist() == [0.5, 0.5, 0, 0.5, 0, 0.5, 0, 0.5]
    assert (batch["exit_B"] == Exit.DONE)[2:].all()
    assert batch["length_B"][2:].tolist() == [2, 2, 2]
    assert rolled.metrics["turns/clean"] == 1
    assert rolled.metrics["turns/contexts"] == 1


def test_equal_calls_are_drawn_apart() -> None:
    class Again(FakeAgents):
        def asks(self, uid, told):
            return ModelCall("completions", (1, 2), max_tokens=3, num=2) if len(told) < 4 else None

    batch = played(Again(lambda uid: (1, 2))).batch
    said = [
        tuple(batch["id_T"][(batch["turn_T"] == turn) & batch["mask_T"]].tolist())
        for turn in range(batch.size("K"))
    ]
    assert batch["rollout_K"].bincount().tolist() == [4] * 5
    assert len(set(said)) > 15  # of 20 that are three of nine digits each


def test_an_engine_keeps_the_newest_calls_answers_alone() -> None:
    held = []

    class Counting(TableEngine):
        def _draw(self, id, row):
            held.append(sum(each.ended for each in self.rows.values()))
            return super()._draw(id, row)

    class Thrice(FakeAgents):
        def asks(self, uid, told):
            return ModelCall("completions", (1, 2), max_tokens=1, num=3) if len(told) < 15 else None

    played(Thrice(lambda uid: (1, 2)), engine=Counting)
    assert 15 <= max(held) < 30  # five rollouts with three answers each, before and now


def test_answers_that_the_agent_never_received_are_in_no_rollout() -> None:
    class Failing(TableEngine):
        def _draw(self, id, row):
            return self._failed(id, row, "lost") if id % 2 else super()._draw(id, row)

    class Both(FakeAgents):
        def asks(self, uid, told):
            return ModelCall("completions", (1, 2), max_tokens=3, num=2)

    batch = played(Both(lambda uid: (1, 2)), engine=Failing).batch
    assert batch["exit_B"].tolist() == [Exit.ENGINE_LOST] * 5
    assert not batch["mask_T"].any()


def test_a_value_of_none_is_no_score_but_where_others_judge() -> None:
    assert played(agents(value=None)).batch["exit_B"].tolist() == [Exit.DECLARED] * 5
    judged = played(agents(value=None, are_judged=True)).batch
    assert Exit.DECLARED not in judged["exit_B"].tolist()


def test_a_call_too_many_is_refused_and_is_the_exit() -> None:
    batch = played(agents(), RunAgents(max_tokens=4, max_turns=1)).batch
    assert (batch["exit_B"][2:] == Exit.TURN_LIMIT).all()
    assert batch["rollout_K"].tolist() == [0, 1, 2, 3, 4]
    assert (batch["reward_K"][2:] == 0).all()


def test_an_agent_that_never_asks_has_nothing_to_learn_from() -> None:
    class Silent(FakeAgents):
        def asks(self, uid, told):
            return None

    batch = played(Silent(lambda uid: (1, 2))).batch
    assert batch.size("B") == 5
    assert not batch["mask_T"].any()


def test_a_mistake_of_the_run_is_not_the_agents() -> None:
    engine = TableEngine(even, text=lambda ids: "")
    engine.capabilities = frozenset()
    services = over_table(engine, {0: (1, 2), 1: (3,)}, pieces=PIECES)
    services.agents = agents()
    part = RunAgents(max_tokens=4, top_k=2)
    with pytest.raises(UserError, match="the strategy needs an engine with"):
        rolled_out(part, DRAWS, engine, services, torch.Generator())
