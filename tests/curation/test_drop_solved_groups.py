import pytest
import torch
from builders import flat_batch, run

from strop.curation.drop_solved_groups import DropSolvedGroups
from strop.errors import UserError

# never solved, always solved, mixed, a lone perfect one, no score
GROUPS = (0, 0, 1, 1, 2, 2, 3, 4)
BATCH = flat_batch((1,) * 8, groups=GROUPS, outcome_B=[0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]).set(
    scored_B=torch.tensor([True] * 7 + [False])
)


def _kept(found):
    return found.value.keep_B.tolist()


def test_keeps_never_solved_and_drops_solved_groups():
    part = DropSolvedGroups(max_rounds=1)
    found = run(part, BATCH, state=part.init())
    assert _kept(found) == [True, True, False, False, True, True, False, False]
    assert found.metrics["dynamic_sampling/missing_prompts"] == 3
    assert found.metrics["dynamic_sampling/uniform_fraction"] == pytest.approx(3 / 5)
    # a unanimous outcome below the best stays, also where the best is another number
    higher = run(DropSolvedGroups(2.0, max_rounds=1), BATCH, state=part.init())
    assert _kept(higher) == [True] * 7 + [False]


def test_asks_until_there_are_enough_or_the_rounds_end():
    part = DropSolvedGroups(num_prompts=3, max_rounds=2)
    found = run(part, BATCH, state=part.init())
    assert found.value.ask == 1
    assert found.state == {"rounds": 1, "target": 3}
    assert all(_kept(found))
    ended = run(part, BATCH, state=found.state)
    assert ended.value.ask == ()
    assert ended.state == part.init()
    enough = DropSolvedGroups(num_prompts=1)
    assert _kept(run(enough, BATCH, state=enough.init())) == [True, True] + [False] * 6


def test_refuses_nonsense():
    for field in ("num_prompts", "max_rounds"):
        with pytest.raises(UserError, match=field):
            DropSolvedGroups(**{field: -1})
