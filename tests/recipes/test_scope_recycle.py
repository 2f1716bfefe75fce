import math
from dataclasses import dataclass

import pytest
import torch
from builders import answers, stages
from commands import Strop
from fakes.engine import TableEngine
from fakes.services import FakeGrading, FakeLog, over_table, rolled_out
from models import Lab, without_times
from short_runs import make_lab

from strop.method import notation
from strop.method.check import check
from strop.method.part import Draw
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.rollout.splice_at_first_error import SpliceAtFirstError
from strop.recipes.scope_recycle import scope_recycle
from strop.support.errors import UserError

# 0 ends, 1 ends a step, 2 is a true step and 3 a false one, 4 begins a prompt.
PIECES = {0: "", 1: ";", 2: "t", 3: "f", 4: "?"}
PROMPTS = {5: (4,), 9: (4, 4)}
DRAWS = (Draw(5, 5), Draw(9, 4))
GIVEN = (2, 1, 2, 1, 2, 0)


def chances(tokens):
    """Three steps of a token each, true with probability 1/2; then the end."""
    new = len(tokens) - (2 if tokens[:2] == (4, 4) else 1)
    if new == 5:
        return [1.0, 0, 0, 0, 0]
    return [0.0, 1.0, 0, 0, 0] if new % 2 else [0.0, 0, 0.5, 0.5, 0]


def false_step(text):
    """The first false step, -1: none."""
    steps = "".join(PIECES[id] for id in text).split(";")
    return next((n for n, step in enumerate(steps) if "f" in step), -1)


@dataclass
class Steps(FakeGrading):
    """1 for an answer without a false step; logs the first one."""

    log: FakeLog = None
    name: str = "first_false_step"

    def grade(self, batch):
        texts = answers(batch)
        uids = batch["rollout_uid_B"].tolist()
        places = dict(zip(uids, map(false_step, texts), strict=True))
        self.log.log_rollouts(self.name, places)
        return super().grade(batch)


def rolled(
    part, seed=0, name="first_false_step", given=GIVEN, draws=DRAWS, unscored=(), **sampling
):
    engine = TableEngine(chances)
    services = over_table(engine, PROMPTS, pieces=PIECES, **sampling)
    services.texts.answers = {(5, "completion"): given, (9, "completion"): given}
    grading = Steps(
        lambda ids: None if tuple(ids) in unscored else float(false_step(ids) < 0 and ids[-1] == 0),
        name=name,
    )
    grading.log = services.log
    services.grading = grading
    found = rolled_out(part, draws, engine, services, torch.Generator().manual_seed(seed))
    assert engine.rows == {}
    return found, engine, grading


def plain(seed=0, draws=DRAWS):
    return rolled(SampleIndependently(), seed, draws=draws)[0].batch


def best_failed(texts, rows, number):
    """Of failed rollouts those with the most steps before the error."""
    failed = [row for row in rows if false_step(texts[row]) >= 0]
    return sorted(failed, key=lambda row: -false_step(texts[row]))[:number]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_demonstration_ends_what_was_right(seed, number):
    part = SpliceAtFirstError(source="demonstration", num_repaired=number, separator=";")
    found, engine, grading = rolled(part, seed)
    before, batch = answers(plain(seed)), found.batch
    group = batch["group_B"].tolist()
    chosen = [
        row
        for g in (0, 1)
        for row in best_failed(before, [r for r in range(9) if group[r] == g], number)
    ]
    columns = [answers(batch, name) for name in ("id_T", "origin_T", "logp_behavior_T")]
    for row, (text, origin, logp) in enumerate(zip(*columns, strict=True)):
        if row not in chosen:
            assert text == before[row]
            assert set(origin) == {0}
            continue
        at = 2 * false_step(before[row])  # a step has two tokens
        assert text == [*before[row][:at], *GIVEN[at:]] == list(GIVEN)
        assert origin == [0] * at + [2] * (6 - at)
        assert [math.isnan(x) for x in logp] == [False] * at + [True] * (6 - at)
    kept = [false_step(before[row]) for row in chosen]
    assert found.metrics == {
        "splice/failed": sum(false_step(text) >= 0 for text in before),
        "splice/tried": len(chosen), "splice/repaired": len(chosen),
        "splice/steps_kept": sum(kept) / len(kept),
    }  # fmt: skip
    assert len(grading.graded) == 9 + len(chosen)
    lost = sum(6 - 2 * step for step in kept)
    assert (found.num_discarded, engine.num_tokens) == (lost, 54)
    assert not batch["truncated_B"].any()
    assert batch["rollout_uid_B"].unique().numel() == 9


def test_answers_without_a_score_have_not_failed():
    part = SpliceAtFirstError(source="demonstration", num_repaired=9, separator=";")
    before = answers(plain())
    unscored = {tuple(text) for text in before if false_step(text) == 0}
    whole, some = rolled(part)[0], rolled(part, unscored=unscored)[0]
    failed = sum(false_step(text) >= 0 for text in before)
    left_out = sum(tuple(text) in unscored for text in before)
    assert 0 < left_out < failed == whole.metrics["splice/failed"]
    assert some.metrics["splice/failed"] == failed - left_out


@pytest.mark.parametrize("seed", range(4))
def test_the_policy_ends_what_was_right_and_the_first_right_end_is_taken(seed):
    part = SpliceAtFirstError(num_tries=3, separator=";")
    found, engine, grading = rolled(part, seed)
    before, after = answers(plain(seed)), answers(found.batch)
    tried = grading.graded[9:]
    group = found.batch["group_B"].tolist()
    place, repaired = 0, 0
    for g in (0, 1):
        for row in best_failed(before, [r for r in range(9) if group[r] == g], 1):
            own = tried[place : place + 3]
            place += 3
            at = 2 * false_step(before[row])
            assert all(text[:at] == before[row][:at] for text in own)
            right = [text for text in own if false_step(text) < 0]
            assert after[row] == (right[0] if right else before[row])
            repaired += bool(right)
    assert place == len(tried) == found.metrics["splice/tried"]
    assert found.metrics["splice/repaired"] == repaired
    assert set(found.batch["origin_T"][found.batch["mask_T"]].tolist()) == {0}
    told = answers(found.batch, "logp_behavior_T")
    for text, logp in zip(after, told, strict=True):
        expected = [math.log(0.5) if id in (2, 3) else 0.0 for id in text]
        assert logp == pytest.approx(expected, abs=1e-6)
    assert engine.num_tokens == sum(map(len, after)) + found.num_discarded


def test_worked_example():
    """Rewards 0 0 0 0 have no advantage; after one is repaired 1 0 0 0 have 1.732, -.577 thrice."""
    draws = (Draw(5, 4),)
    seed = next(s for s in range(99) if min(map(false_step, answers(plain(s, draws)))) >= 0)
    part = SpliceAtFirstError(source="demonstration", separator=";")
    found, *_ = rolled(part, seed, draws=draws)
    right = [float(false_step(text) < 0) for text in answers(found.batch)]
    assert sorted(right) == [0, 0, 0, 1]
    algorithm = scope_recycle(std="biased", eps=0.0)
    reward_B = torch.tensor(right, dtype=torch.float64)
    scored_B = torch.ones(4, dtype=torch.bool)
    batch = found.batch.set(reward_B=reward_B, advantage_B=reward_B, scored_B=scored_B)
    advantage_B = stages(algorithm, batch)["advantage_B"].tolist()
    assert sorted(advantage_B) == pytest.approx([-0.577] * 3 + [1.732], abs=5e-4)


def test_equals_plain_samples_when_nothing_is_repaired():
    for part, given in (
        (SpliceAtFirstError(num_repaired=0), GIVEN),
        (SpliceAtFirstError(source="demonstration", separator=";"), ()),
        (SpliceAtFirstError(source="demonstration", separator=";"), (3, 0)),  # no right end
    ):
        batch = rolled(part, 2, given=given)[0].batch
        for name, column in plain(2).columns.items():
            same = torch.equal(batch[name].nan_to_num(9.0), column.nan_to_num(9.0))
            assert same, name


def test_an_end_that_does_not_fit_is_not_tried():
    part = SpliceAtFirstError(source="demonstration", separator=";")
    found, *_ = rolled(part, 1, given=(*GIVEN[:-1], 1, 2, 0), answer_tokens=7)
    assert found.metrics["splice/tried"] == 0
    assert rolled(part, 1, answer_tokens=7)[0].metrics["splice/tried"] > 0


def test_composes_and_mistakes_are_refused():
    algorithm = scope_recycle(source="demonstration", learn_given=False, separator=". ")
    check(algorithm)
    assert [use.label for use in algorithm.selection] == ["keep_origins"]
    assert scope_recycle().rollout.part.num_tries == 4
    for wrong in ("source='teacher'", "num_repaired=-1", "num_tries=0", "separator=''"):
        with pytest.raises(UserError, match="splice_at_first_error"):
            notation.recipe(f"scope_recycle({wrong})")
    with pytest.raises(UserError, match=r"no reward logs first_false_step.*log_extra"):
        rolled(SpliceAtFirstError(separator=";"), name="another")


def test_eight_steps_from_the_command_line(tmp_path, monkeypatch, capsys):
    lab: Lab = make_lab(tmp_path)
    words = lab.arguments(
        "training.steps=8", "training.save_every=0", "training.rollouts_every=0",
        "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    words[words.index(f"{lab.rewards}:digits")] = f"{lab.rewards}:even"
    result = Strop(monkeypatch, capsys)("train", "scope_recycle(separator='+')", *words)
    assert result.code == 0, result.err
    lines = [line for line in without_times(tmp_path / "run") if line["step"]]
    assert len(lines) == 8
    assert sum(line["splice/tried"] for line in lines) > 8
    assert sum(line["splice/repaired"] for line in lines) > 2
