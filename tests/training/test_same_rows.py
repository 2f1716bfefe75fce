"""How two methods are distinguished on the same rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import flat_batch

from strop.batch.batch import Batch
from strop.method.chains import generators
from strop.training.learner.same_rows import SameRows, Unequal, _differ


def rows_of(trained: Batch | None = None) -> SameRows:
    return SameRows(generators(0, 1), {}, None, (), trained=trained)


def methods(**uses: list[tuple[str, str]]) -> Any:
    return [SimpleNamespace(uses=lambda own=own: own) for own in uses.values()]


def test_parts_that_both_methods_have_go_on_with_their_state():
    state = {"sampling.a": 1, "advantage.b": 2, "advantage.c": 3}
    rows = SameRows(generators(0, 1), state, None, ())
    one, other = methods(
        own=[("sampling.a", "a(n=2)"), ("advantage.b", "b(n=2)"), ("advantage.c", "c")],
        other=[("sampling.a", "a(n=2)"), ("advantage.b", "b(n=3)"), ("advantage.d", "d")],
    )
    assert rows._chains(one, other).state == {"sampling.a": 1}


def test_columns_differ_by_more_than_rounding_of_the_largest():
    one = torch.tensor([0.0, 4.0])
    assert not _differ(one, one + 3e-5)  # 4 * 1e-5 is rounding
    assert _differ(one, one + 5e-5)
    assert _differ(one, -one)
    assert _differ(None, one)
    assert not _differ(None, torch.zeros(2))
    assert not _differ(torch.zeros(0), torch.zeros(0))
    assert _differ(one, one * float("nan"))


def test_rows_of_several_rounds_are_not_compared():
    rows, batch = rows_of(), flat_batch((1,))
    own: Any = SimpleNamespace(reward=("first", "second", "third"))
    for stage, label in (("reward", "a"), ("selection", "b"), ("reward", "c"), ("reward", "d")):
        use: Any = SimpleNamespace(label=label)
        rows.after(stage, use, batch.set(uid_P=torch.ones(1, dtype=torch.long)))
    assert [label for label, _ in rows.rewarded] == ["a", "c", "d"]
    assert rows._whole(own) is rows.rewarded[2][1]
    rows.rewarded *= 2
    with pytest.raises(Unequal, match="curation"):
        rows._whole(own)


def test_equal_rewards_and_curation_leave_the_rows_of_the_step_and_others_begin_with_the_rewards():
    batch = flat_batch((1, 1), rollout_uid_B=[3, 4])
    first, second = (batch.set(reward_B=torch.full((2,), value)) for value in (1.0, 2.0))
    rows = rows_of(batch)
    chains: Any = SimpleNamespace(write=lambda stage, uses, batch: batch)

    def method(*reward: str) -> Any:
        return SimpleNamespace(reward=reward, curation=(), probes=(), advantage=())

    own = method("a", "b")
    assert rows._curated(own, own, chains).columns == batch.columns  # whatever the rounds were
    with pytest.raises(Unequal, match="curation"):
        rows._curated(own, method("a"), chains)
    rows.rewarded = [("a", first), ("b", second)]
    assert rows._curated(own, method("a"), chains)["reward_B"].tolist() == [1.0, 1.0]
    with pytest.raises(Unequal, match="reward"):
        rows._curated(own, method(), chains)


def test_tokens_without_a_pass_have_the_log_probability_of_before_and_0_of_other_columns():
    batch = flat_batch((1, 1, 1), logp_old_T=[-1.0, -2.0, float("nan")])
    rows = rows_of(batch)
    passed = {"logp_T": torch.tensor([-5.0]), "entropy_T": torch.tensor([0.5])}
    rows.updates = {0: [(torch.tensor([1]), passed)]}
    assert rows._measured(0, "logp_T", batch).tolist() == [-1.0, -5.0, 0.0]
    assert rows._measured(0, "entropy_T", batch).tolist() == [0.0, 0.5, 0.0]
    for number, name in ((1, "logp_T"), (0, "kl_ref_T")):
        with pytest.raises(Unequal, match="columns"):
            rows._measured(number, name, batch)
