"""Groups that are drawn until enough of them are complete."""

import pytest
from fakes.coroutines import go, requests, table, told

from strop.engines.asynchronous import asynchronous
from strop.method.part import Draw
from strop.parts.rollout._unfinished import generate, new_groups


@pytest.mark.parametrize("target", [5, 40])
def test_a_group_is_looked_at_when_an_answer_of_it_has_ended(target):
    """And not whenever one of another group has: a step may have hundreds of groups."""
    engine, looked = table(), []
    asked = [each for n in range(40) for each in requests(2, 2 + 3 * n)]
    groups = new_groups([Draw(uid, 2) for uid in range(40)], asked)

    def is_complete(group):
        looked.append(group.draw.uid)
        return group.ended

    complete, lost = go(engine, generate(asynchronous(engine), groups, is_complete, target))
    assert [group.draw.uid for group in complete] == list(range(target))
    assert lost == 0
    assert told([a for group in complete for a in group.answers]) == told(
        asynchronous(table()).sample(asked[: 2 * target])
    )
    assert max(map(looked.count, range(40))) <= 2 + 2 + 2  # at the start, for each answer, at last
