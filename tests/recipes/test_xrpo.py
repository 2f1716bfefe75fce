import json

import pyarrow.parquet as pq
import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from fakes.services import FakeSampling, FakeScoring, FakeServices, FakeTexts
from hypothesis import given
from hypothesis import strategies as st
from models import Lab, without_times
from runs import Runner

from strop.parts.advantage.scale.favour_unlikely_successes import FavourUnlikelySuccesses
from strop.parts.curation.ask_where_unsure import AskWhereUnsure, half_width, priority, shared_out
from strop.parts.curation.ask_with_solved_examples import AskWithSolvedExamples
from strop.recipes.grpo import grpo
from strop.recipes.xrpo import xrpo
from strop.support.errors import UserError


def test_worked_example_of_the_priority():
    assert half_width(0.57735, 4, 0.05) == pytest.approx(0.9187, abs=1e-4)
    assert half_width(0.57735, 5, 0.05) == pytest.approx(0.7169, abs=1e-4)
    assert priority(0.57735, 4, 12, 0.05, 0.0) == pytest.approx(0.2018, abs=1e-4)
    assert priority(0.5, 4, 12, 0.05, 0.0) == pytest.approx(0.1748, abs=1e-4)
    assert priority(0.0, 4, 12, 0.05, 0.0) == 0.0
    assert shared_out([0.0, 0.0], [2, 3], 1, 0.05, 0.0) == [1, 0]  # equal ones: the first
    assert priority(0.0, 4, 12, 0.05, 0.5) == pytest.approx(0.5 * (2.564949 / 4) ** 0.5)


@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=5), budget=st.integers(0, 20))
def test_a_large_bonus_evens_the_sizes_out(sizes, budget):
    given_ = shared_out([0.5] * len(sizes), sizes, budget, 0.05, 1e6)
    assert sum(given_) == budget
    final = [n + more for n, more in zip(sizes, given_, strict=True)]
    grown = [n for n, more in zip(final, given_, strict=True) if more]
    assert not grown or max(grown) <= min(final) + 1


@given(
    prompts=st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.4, 0.5]), st.integers(2, 6)),
                     max_size=6),
    budget=st.integers(0, 20),
    bonus=st.sampled_from([0.0, 0.05, 0.3]),
)  # fmt: skip
def test_rollouts_go_one_by_one_to_the_highest_priority(prompts, budget, bonus):
    deviations, sizes = [s for s, _ in prompts], [n for _, n in prompts]
    expected = [0] * len(prompts)
    for _ in range(budget if prompts else 0):
        total = sum(sizes) + sum(expected)
        ranks = [
            priority(s, n + more, total, 0.05, bonus)
            for s, n, more in zip(deviations, sizes, expected, strict=True)
        ]
        expected[ranks.index(max(ranks))] += 1
    assert shared_out(deviations, sizes, budget, 0.05, bonus) == expected


def test_rounds_of_a_step():
    batch = flat_batch([1] * 12, [0] * 4 + [1] * 4 + [2] * 4,
                       outcome_B=[1.0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0])  # fmt: skip
    batch = batch.set(uid_P=torch.tensor([7, 8, 9]), draw_P=torch.tensor([0, 1, 0]))
    part = AskWhereUnsure(budget=1, bonus=0.0)
    first = run(part, batch, state=part.init())
    # D: .2018, .1748 -> the first; then .2018 becomes h(5) - h(6) = .111: the second; then again
    assert [(d.uid, d.num_rollouts, d.draw) for d in first.value.ask] == [(7, 2, 0), (8, 1, 1)]
    assert first.value.ask[0].why == "2 rollouts more in round 2"
    second = run(part, batch, state=first.state)
    assert second.value.ask
    last = run(part, batch, state=second.state)
    assert last.value.ask == ()
    assert last.state == part.init()
    assert last.metrics == {"budget/mean": 4.0, "budget/least": 4.0, "budget/most": 4.0}
    assert run(AskWhereUnsure(rounds=0), batch, state=part.init()).value.ask == ()
    uneven = flat_batch([1] * 4, [0, 1, 1, 1], outcome_B=[1.0] * 4)
    found = run(part, uneven, state=part.init()).metrics
    assert found == {"budget/mean": 2.0, "budget/least": 1.0, "budget/most": 3.0}


def test_worked_example_of_novelty():
    # biased deviation: A = .577, .577, .577, -1.732; s = -.2, -.3, -.6, -.5; mean -.4
    batch = flat_batch((1, 2, 1, 1), advantage_B=[0.57735, 0.57735, 0.57735, -1.73205],
                       logp_sampler_T=[-0.2, -0.1, -0.5, -0.6, -0.5])  # fmt: skip
    found = run(FavourUnlikelySuccesses(), batch)
    assert found.value.tolist() == pytest.approx([0.5774, 0.5774, 0.8660, -1.7321], abs=1e-4)
    assert found.metrics["novelty/bonus_mean"] == pytest.approx(0.28868 / 3, abs=1e-4)
    free = run(FavourUnlikelySuccesses(most=9.0), batch)
    assert free.value[2].item() == pytest.approx(0.57735 + 2.5 * (1 - 0.81873), abs=1e-4)
    void = batch.set(logp_sampler_T=torch.full((5,), torch.nan).double())
    assert run(FavourUnlikelySuccesses(), void).value.equal(batch["advantage_B"])
    # a rollout without a score and one without log-probabilities are in no mean
    more = flat_batch(
        (1, 2, 1, 1, 1, 1), advantage_B=[0.57735, 0.57735, 0.57735, -1.73205, 1.0, 0.5],
        logp_sampler_T=[-0.2, -0.1, -0.5, -0.6, -0.5, -9.0, torch.nan],
        scored_B=[True] * 4 + [False, True],
    )  # fmt: skip
    expected = [0.5774, 0.5774, 0.8660, -1.7321, 0.0, 0.5]
    assert run(FavourUnlikelySuccesses(), more).value.tolist() == pytest.approx(expected, abs=1e-4)


def test_one_phase_without_examples_or_bonus_is_grpo():
    plain = xrpo(phases=1, K=0, lam_nov=0.0, num_rollouts=16)
    assert plain == grpo()
    batch = ragged_batch(4)
    torch.testing.assert_close(
        stages(xrpo(lam_nov=0.0), batch)["advantage_T"], stages(grpo(), batch)["advantage_T"]
    )


PIECES = {1: "a", 2: "b", 3: "c", 4: "\n", 5: "x", 0: ""}
PROMPTS = {7: [1], 8: [1, 2], 9: [3]}
SERVICES = FakeServices(
    FakeTexts(PROMPTS, PIECES, special_ids=(0,)),
    sampling=FakeSampling(answer_tokens=4, context_tokens=12),
    scoring=FakeScoring(table_VD=torch.eye(6)),
)


def asked(part, outcomes, state, ids=(5, 0), services=SERVICES):
    """One group of two rollouts for each prompt, all of the answer `ids`."""
    uids = list(outcomes)
    rows = [float(value) for uid in uids for value in outcomes[uid]]
    size = len(ids)
    batch = flat_batch([size] * len(rows), [n for n, uid in enumerate(uids) for _ in outcomes[uid]],
                       outcome_B=rows, id_T=list(ids) * len(rows))  # fmt: skip
    return run(part, batch.set(uid_P=torch.tensor(uids)), state=state, services=services)


def test_examples_are_the_nearest_solved_prompts():
    part = AskWithSolvedExamples(num_asked=3)
    found = asked(part, {7: [1, 0], 9: [0, 1], 8: [0, 0]}, part.init())
    (draw,) = found.value.ask
    # "c" and its answer, then "a", which shares a letter, then the prompt itself
    assert draw.columns["prompt_ids"] == (3, 5, 4, 1, 5, 4, 1, 2)
    assert (draw.uid, draw.num_rollouts, draw.draw) == (8, 3, 0)
    assert draw.why == "3 rollouts more, none was right, behind solved prompts 7, 9"
    after = asked(part, {7: [1, 0], 9: [0, 1], 8: [0, 0, 1]}, found.state)
    assert after.value.ask == ()
    assert after.metrics == {"seeded/groups": 1.0, "seeded/solved": 1.0, "seeded/stored": 2.0}
    assert after.state == {**part.init(), "answers": {7: (5, 0), 9: (5, 0)}}


def test_plainly_without_examples_and_within_the_room():
    part = AskWithSolvedExamples(num_asked=3, num_examples=1)
    (draw,) = asked(part, {8: [0, 0]}, part.init()).value.ask
    assert draw.columns == {}
    own = {"answers": {8: (5, 0)}, "asked": (), "done": False}
    (draw,) = asked(part, {8: [0, 0]}, own).value.ask
    assert draw.columns == {}  # never its own answer
    long = {"answers": {7: (5,) * 9}, "asked": (), "done": False}
    (draw,) = asked(part, {8: [0, 0]}, long).value.ask
    assert draw.columns == {}  # 12 - 4 - 2 tokens of room
    both = {"answers": {7: (5,), 9: (5, 5)}, "asked": (), "done": False}
    (draw,) = asked(AskWithSolvedExamples(), {8: [0, 0]}, both).value.ask
    assert draw.columns["prompt_ids"] == (1, 5, 4, 1, 2)  # 3 of the 6 tokens, 4 more are too many
    assert draw.why.endswith("behind solved prompts 7")
    stored = asked(AskWithSolvedExamples(capacity=1), {7: [1, 1], 9: [1, 1]}, part.init())
    assert stored.state["answers"] == {9: (5, 0)}
    batch = flat_batch([1], outcome_B=[0.0], valid_K=[True])
    with pytest.raises(UserError, match="episodes"):
        run(part, batch, state=part.init(), services=SERVICES)


def test_a_run_says_why_and_goes_on_as_it_would_have(tmp_path):
    raw = Lab.make(tmp_path).raw("xrpo(extra=2)", reward="even")
    raw["algorithm"]["sampling.num_rollouts"] = 2
    raw["algorithm"]["sampling.num_prompts"] = 3
    Runner().whole(raw, tmp_path / "whole")
    Runner().whole({**raw, "training": {**raw["training"], "steps": 2}}, tmp_path / "cut")
    runner = Runner()
    runner.go(runner.resume(tmp_path / "cut", training={"steps": 3}))
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["budget/mean"] >= 6 for line in lines[-3:])
    rows = pq.read_table(tmp_path / "whole" / "rollouts" / "step-000003.parquet").to_pylist()
    assert any("more in round 2" in (row["draw/why"] or "") for row in rows)
