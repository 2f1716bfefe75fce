import math

import pytest
import torch
from builders import answers
from fakes.engine import TableEngine
from fakes.services import Steps
from models import Lab, without_times
from runs import Runner

from strop.method import notation
from strop.method.check import check
from strop.method.part import EARLIER, Draw
from strop.parts.rollout.leave_slow_groups_for_later import LeaveSlowGroupsForLater
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.recipes.april_partial_rollout import april_partial_rollout
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

# Prompts a, b, c, d are one token; 0 ends an answer, 5 and 6 go on.
A, B, C, D, E, F = range(1, 7)
PROMPTS = {uid: (uid,) for uid in (A, B, C, D, E, F)}


def tails(going=0.5):
    """c has 2 tokens, a 4, b 1 or as many as may be, d, e and f as many as may be."""

    def probabilities(tokens):
        name, new = tokens[0], len(tokens) - 1
        stops = {A: new == 3, B: 0.375 * (new == 0), C: new == 1}.get(name, 0.0)
        rest = 1.0 - stops
        return [float(stops), 0, 0, 0, 0, rest * going, rest * (1 - going)]

    return probabilities


def begun(part=None, table=None, answer_tokens=8):
    engine = TableEngine(table or tails())
    return Steps(part or LeaveSlowGroupsForLater(), engine, PROMPTS, answer_tokens)


def draws(*uids, spare=(), num=8):
    return tuple(Draw(uid, num, {"spare_B": float(uid in spare)}) for uid in uids)


def test_worked_example():
    """T = 2, C = 4: c and a end first; b, of which 3 of 8 are done, and d wait for the next step,
    where they come first and b draws 5 samples."""
    seed = next(s for s in range(99) if done_of_b(s) == 3)
    phases = begun()
    first = phases(draws(A, B, C, D, spare=(C, D)), seed)
    assert len(phases.submitted) == 32
    assert first.batch["uid_P"].tolist() == [A, C]  # accepted c, then a; trained on by index
    assert first.batch["length_B"].tolist() == [4] * 8 + [2] * 8
    assert first.metrics == {
        "partial/groups_left": 2.0, "partial/tokens_left": 3 + 5 * 4.0 + 8 * 4,
        "partial/given_up": 0.0,
    }  # fmt: skip
    assert first.num_discarded == 0
    second = phases(draws(C, E), seed=1)
    new = [len(request.ids) for request in phases.submitted]
    assert new == [5] * 5 + [5] * 8 + [1] * 16  # b, d, then two new groups
    assert [r.max_tokens for r in phases.submitted] == [4] * 13 + [8] * 16
    # c ends after 2 tokens; b and d reach their limit in the same step after 4, b drawn first
    assert second.batch["uid_P"].tolist() == [B, C]
    assert second.batch["draw_P"].tolist() == [EARLIER, 0]
    assert sorted(second.batch["length_B"][:8].tolist()) == [1] * 3 + [8] * 5
    assert second.batch["truncated_B"][:8].sum() == 5
    third = phases(draws(A, F), seed=2)  # d had ended, e was begun before a and ends with it
    assert third.batch["uid_P"].tolist() == [D, E]
    assert third.batch["spare_B"].tolist() == [1.0] * 8 + [0.0] * 8
    assert third.batch["draw_P"].tolist() == [EARLIER, 2 * EARLIER]


def done_of_b(seed):
    """Answers of b that end at once, as the first step draws them."""
    found = begun(SampleIndependently())(draws(A, B, C, D), seed)
    return int((found.batch["length_B"][8:16] == 1).sum())


def test_equals_plain_samples_without_spare_draws():
    ours = begun()(draws(A, B, C, D, num=3), seed=4)
    theirs = begun(SampleIndependently())(draws(A, B, C, D, num=3), seed=4).batch
    for name, column in theirs.columns.items():
        assert ours.batch[name].equal(column), name
    assert ours.metrics["partial/groups_left"] == 0


def test_what_is_broken_off_and_goes_on_is_one_answer():
    """With the same weights each answer is that of its seed without a break."""
    phases = begun()
    kept = {}
    for step, drawn in enumerate([draws(B, D, A, C, spare=(A, C)), draws(A, E), draws(C, F)]):
        batch = phases(drawn, seed=step).batch
        for seed, text in zip(batch["rollout_uid_B"].tolist(), answers(batch), strict=True):
            assert seed not in kept
            kept[seed] = (int(batch["uid_P"][batch["group_B"][len(kept) % 16]]), text)
    whole = {}
    for step, drawn in enumerate([draws(B, D, A, C), draws(A, E), draws(C, F)]):
        batch = begun(SampleIndependently())(drawn, seed=step).batch
        whole |= dict(zip(batch["rollout_uid_B"].tolist(), answers(batch), strict=True))
    assert len(kept) == 3 * 16
    assert {seed: text for seed, (_, text) in kept.items()} == {s: whole[s] for s in kept}


def test_tokens_keep_the_probability_and_the_version_of_the_weights_that_drew_them():
    phases = begun()
    found = [phases(draws(A, C, D, E, spare=(D, E), num=4)).batch]
    for version, going in ((1, 0.9), (2, 0.2)):
        phases.engine.load_weights(tails(going), version)
        found.append(phases(draws(A, C, num=4), seed=version).batch)
    mixed = set()
    for batch in found:
        columns = (answers(batch, name) for name in ("id_T", "logp_behavior_T", "version_T"))
        for text, logp, versions in zip(*columns, strict=True):
            assert versions == sorted(versions)
            mixed.add(tuple(sorted(set(versions))))
            shares = [(0.5, 0.9, 0.2)[v] for v in versions]
            pairs = zip(text, shares, strict=True)
            drawn = [1.0 if id == 0 else p if id == 5 else 1 - p for id, p in pairs]
            assert logp == pytest.approx([math.log(p) for p in drawn], abs=1e-6)
    assert mixed >= {(0,), (1,), (0, 1)}


def test_a_saved_state_goes_on_as_it_would_have(tmp_path):
    one, other = begun(), begun()
    for phases in (one, other):
        phases(draws(A, B, C, D, spare=(C, D)), seed=3)
    torch.save(other.state, tmp_path / "state.pt")
    other.state = torch.load(tmp_path / "state.pt", weights_only=True)
    for step in (5, 6):
        ours, theirs = one(draws(E, A), seed=step), other(draws(E, A), seed=step)
        for name, column in ours.batch.columns.items():
            assert column.equal(theirs.batch[name]), name
        assert ours.metrics == theirs.metrics


def test_groups_that_grow_too_old_are_begun_anew():
    """d would have tokens of version 0 in the step of version 2, two steps old."""
    for max_age, given_up in ((1, 8 * 4), (2, 0)):
        phases = begun(LeaveSlowGroupsForLater(max_age=max_age), answer_tokens=30)
        phases(draws(A, C, D, spare=(D,)))
        phases.engine.load_weights(None, 1)
        second = phases(draws(A, C), seed=1)
        assert second.num_discarded == given_up * 2  # 4 tokens of each step
        assert second.metrics["partial/given_up"] == float(given_up > 0)
        phases.engine.load_weights(None, 2)
        phases(draws(A, C), seed=2)
        versions = {v for group in phases.state["groups"] for _, told in group["answers"]
                    for (_, _, v, *_) in told}  # fmt: skip
        assert versions == ({2} if given_up else set())


def test_composes():
    algorithm = april_partial_rollout()
    assert [use.label for use in algorithm.sampling] == [
        "draw_in_shuffled_order", "draw_spare_prompts",
    ]  # fmt: skip
    assert algorithm.sampling[0].part.num_rollouts == 8
    assert algorithm.sampling[1].part.share == 1.0
    plain = april_partial_rollout(chunk=32)
    assert plain.sampling == grpo(num_rollouts=8).sampling
    assert april_partial_rollout(dynamic_sampling=True).curation
    for text in ("chunk=31", "max_age=-1", "chunk=8, num_prompts=9"):
        with pytest.raises(UserError):
            check(notation.recipe(f"april_partial_rollout({text})"))
    with pytest.raises(UserError, match="chunk=8 prompts under way cannot end num_prompts=9"):
        april_partial_rollout(chunk=8, num_prompts=9)


def test_a_run_that_is_killed_goes_on_with_what_was_put_off(tmp_path):
    lab = Lab.make(tmp_path)
    raw = lab.raw("april_partial_rollout(chunk=7, num_prompts=3, dynamic_sampling=True)", "even")
    del raw["algorithm"]["sampling.num_prompts"]
    raw["training"] |= {"steps": 6}
    Runner().whole(raw, tmp_path / "whole")
    runner = Runner()
    raw["training"] |= {"steps": 3}
    runner.whole(raw, tmp_path / "parts")
    runner.go(runner.resume(tmp_path / "parts", training={"steps": 6}))
    lines = without_times(tmp_path / "whole")
    assert without_times(tmp_path / "parts") == lines
    assert sum(line["partial/tokens_left"] > 0 for line in lines) > 3
    assert {line["partial/groups_left"] for line in lines} == {4.0}
    assert max(line["sampling/age_steps"] for line in lines) > 0.1
