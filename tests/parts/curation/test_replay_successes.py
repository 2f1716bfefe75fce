import pytest
import torch
from builders import flat_batch, run

from strop.parts.curation.replay_successes import ReplaySuccesses
from strop.support.errors import UserError


def batch_of(step, groups, scored=None):
    """Groups of rewards; advantages against the groups' means; uids 100 step + place."""
    rewards = [float(r) for group in groups for r in group]
    index = [n for n, group in enumerate(groups) for _ in group]
    made = [float(r) - sum(group) / len(group) for group in groups for r in group]
    num = len(rewards)
    uid_B = 100 * step + torch.arange(num)
    scored_B = torch.ones(num, dtype=torch.bool) if scored is None else torch.tensor(scored)
    return flat_batch(
        (1,) * num, index, reward_B=rewards, made_advantage_B=made, rollout_uid_B=uid_B,
        id_T=uid_B, origin_T=torch.zeros(num, dtype=torch.int64), step=torch.tensor(step),
        logp_sampler_T=[-0.1 * step] * num, uid_P=torch.arange(len(groups)) + 7,
    ).set(scored_B=scored_B)  # fmt: skip


def steps(part, *batches, state=None, seed=0):
    """What came back at each step, the metrics, and the state at the end."""
    state, found = part.init() if state is None else state, []
    for batch in batches:
        rng = torch.Generator().manual_seed(1000 * seed + int(batch["step"]))
        result = run(part, batch, state=state, rng=rng)
        assert result.value.keep_B.all()
        state = result.state
        found.append((result.value.add, result.metrics))
    return found, state


def stored(state):
    return state["columns"]["rollout_uid_B"].tolist()


def history(part, means):
    none = torch.zeros(len(means), dtype=torch.float64)
    return {**part.init(), "means": torch.tensor(means, dtype=torch.float64), "stds": none}


def test_worked_example():
    # history [.2, .5, .4]: P50 = .4; R = 1: A' = .6; R = 0 is dropped
    part = ReplaySuccesses(size=1)
    first = batch_of(1, [[1, 0], [1, 0], [0, -1]])  # A > 0: rewards 1, 1 and 0
    _, state = steps(part, first)
    assert stored(state) == [100, 102, 104]
    state |= history(part, [0.2, 0.5, 0.4]) | {"columns": state["columns"]}
    ((add, metrics),), after = steps(part, batch_of(2, [[0, 0]]), state=state)
    assert metrics["replay/baseline"] == pytest.approx(0.4)
    assert add["made_advantage_B"].tolist() == pytest.approx([0.6])  # one, the power of two <= 1
    assert add["rollout_uid_B"].tolist()[0] in (100, 102)
    assert add["origin_T"].tolist() == [4]
    assert add["logp_sampler_T"].tolist() == pytest.approx([-0.1])
    assert metrics["replay/age_mean"] == 1
    assert stored(after) == []  # emptied, and nothing new has A > 0
    assert after["means"].tolist() == pytest.approx([0.2, 0.5, 0.4, 0.0])


def test_nothing_comes_back_before_enough_is_stored():
    part = ReplaySuccesses(size=2)  # more than 3 good ones
    groups = [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    found, state = steps(part, batch_of(1, groups), batch_of(2, [[1, 0]]))
    assert found[1][0] is None  # 3 when step 2 asked
    assert len(stored(state)) == 4
    ((add, metrics),), state = steps(part, batch_of(3, [[1, 1, 0]]), state=state)
    assert add.size("B") == 2
    # medians of [.25, .25, .25, .5]
    assert add["made_advantage_B"].tolist() == pytest.approx([0.75, 0.75])
    assert metrics["replay/drawn"] == 2
    assert stored(state) == [300, 301]


def test_as_many_as_a_power_of_two_and_no_more_than_size():
    groups = [[1] * 7 + [0] * 20]
    for size, number in ((8, 0), (4, 4), (3, 3), (1, 1)):
        found, _ = steps(ReplaySuccesses(size=size), batch_of(1, groups), batch_of(2, [[0]]))
        add = found[1][0]
        assert (0 if add is None else add.size("B")) == number
    found, _ = steps(ReplaySuccesses(9), batch_of(1, [[1] * 14 + [0] * 20]), batch_of(2, [[0]]))
    assert found[1][0].size("B") == 8  # of 14
    drawn = set()
    for seed in range(20):
        found, _ = steps(ReplaySuccesses(4), batch_of(1, groups), batch_of(2, [[0]]), seed=seed)
        drawn |= set(found[1][0]["rollout_uid_B"].tolist())
    assert drawn == set(range(100, 107))


def test_what_is_usual_by_now_is_no_success():
    # group means .75 and .25, P50 = .5: the stored R of .4 was good, and A' < 0 by now
    first = batch_of(1, [[1, 0.5, 0.75, 0.75], [0.4, 0.1, 0.25, 0.25], [1, 0]])
    found, _ = steps(ReplaySuccesses(1), first, batch_of(2, [[0]]))
    (add, metrics) = found[1]
    assert metrics["replay/baseline"] == 0.5
    assert add["made_advantage_B"].tolist() == [0.5]


def test_division_by_the_usual_deviation():
    first = batch_of(1, [[1, 0], [1, 0, 0, 0]])  # deviations .5 and sqrt(3)/4, means .5 and .25
    found, state = steps(ReplaySuccesses(1, normalize_std=True), first, batch_of(2, [[0]]))
    middle = (0.5 + 3**0.5 / 4) / 2
    assert state["stds"].tolist() == pytest.approx([0.5, 3**0.5 / 4, 0.0])
    assert found[1][0]["made_advantage_B"].tolist() == pytest.approx([0.625 / (middle + 1e-6)])


def test_a_usual_deviation_of_zero_divides_nothing():
    first = batch_of(1, [[1, 0], [1, 0], [0, 0], [0, 0], [0, 0]])  # deviations .5 .5 0 0 0
    found, _ = steps(ReplaySuccesses(1, normalize_std=True), first, batch_of(2, [[0]]))
    plain, _ = steps(ReplaySuccesses(1), first, batch_of(2, [[0]]))
    ours, theirs = (each[1][0]["made_advantage_B"].tolist() for each in (found, plain))
    assert ours == theirs != []


def test_decay_keeps_the_advantage_of_then():
    first = batch_of(1, [[0.2, 0.1], [0.3, 0.1]])  # A = .05 and .1; all of the store count
    found, _ = steps(ReplaySuccesses(1, decay=0.9), first, batch_of(2, [[0]]))
    assert found[1][0]["made_advantage_B"].tolist()[0] in (
        pytest.approx(0.045), pytest.approx(0.09)
    )  # fmt: skip


def test_old_rollouts_leave_and_the_history_is_bounded():
    part = ReplaySuccesses(size=100, history=3, max_age=2)
    batches = [batch_of(step, [[1, 0], [0, step]]) for step in range(1, 6)]
    _, state = steps(part, *batches)
    assert stored(state) == [300, 303, 400, 403, 500, 503]
    assert state["means"].tolist() == [2.0, 0.5, 2.5]


def test_unscored_rollouts_count_for_nothing():
    batch = batch_of(1, [[1, 0, 5], [3]], scored=[True, True, False, False])
    batch = batch.set(made_advantage_B=torch.tensor([0.5, -0.5, 4.0, 1.0]))
    _, state = steps(ReplaySuccesses(), batch)
    assert stored(state) == [100]
    assert state["means"].tolist() == [0.5]


def test_bad_options_are_refused():
    for fields in ({"size": 0}, {"history": 0}, {"max_age": -1}, {"decay": 1.5}):
        with pytest.raises(UserError, match=next(iter(fields))):
            ReplaySuccesses(**fields)
