import math

import pytest
import torch
from builders import answers
from fakes.engine import TableEngine
from fakes.services import FakeScoring, over_table, rolled_out
from models import Lab, without_times
from runs import Runner

from strop.method import notation
from strop.method.part import Draw
from strop.parts.rollout._quality_head import (
    WEIGHTS,
    bins_of,
    nearest_subset,
    new_head,
    scores,
    success_of_bins,
    trained,
)
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.rollout.stop_sure_answers import StopSureAnswers
from strop.recipes.arrol import arrol
from strop.support.errors import UserError

DRAWS = (Draw(5, 8), Draw(9, 6))
PROMPTS = {5: (4,), 9: (4, 4)}
RIGHT, WRONG = 1, 2


def chances(tokens):
    """After the first token, 1 (right) or 2 (wrong) of equal chance, an answer goes on and ends."""
    new = len(tokens) - (2 if tokens[:2] == (4, 4) else 1)
    if new == 0:
        return [0.0, 0.45, 0.45, 0.1, 0]  # 3 ends at the next token
    if tokens[-1] == 3 and new == 1:
        return [1.0, 0, 0, 0, 0]
    return [0.3 if new > 3 else 0.0, 0.4, 0.4, 0.2 if new < 4 else 0.0, 0]


class States(FakeScoring):
    """The hidden state of an answer's last token, and no other, tells its first token."""

    def hidden(self, batch):
        ids = torch.split(batch["id_T"][batch["mask_T"]], batch["length_B"].tolist())
        for row in reversed(range(batch.size("B"))):
            states = torch.zeros(len(ids[row]), 5, dtype=torch.float64)
            states[-1, ids[row][0]] = 1
            yield [row], (states,)


class Steps:
    """Step after step of one strategy, its state kept, with outcomes of the first token."""

    def __init__(self, part, **options):
        self.part, self.state = part, part.init() if hasattr(part, "init") else None
        self.engine = TableEngine(chances, **options)
        self.services = over_table(self.engine, PROMPTS, answer_tokens=9)
        self.services.scoring = States()

    def __call__(self, seed=0):
        rng = torch.Generator().manual_seed(seed)
        before = self.engine.num_tokens
        found = rolled_out(self.part, DRAWS, self.engine, self.services, rng, self.state)
        assert self.engine.rows == {}
        self.drawn = self.engine.num_tokens - before
        self.state = found.state
        if hasattr(self.part, "observe"):
            first = [text[0] for text in answers(found.batch)]
            outcome_B = torch.tensor([float(token == RIGHT) for token in first])
            scored_B = torch.ones(len(first), dtype=torch.bool)
            uids = found.batch["rollout_uid_B"]
            self.state = self.part.observe(uids, outcome_B, scored_B, self.state)
        return found


def test_worked_example():
    """Half of q = .9 .85 .8 .7 .4 .3 .2 .1 with a mean of .5; the four best would have .81."""
    chance = [0.9, 0.85, 0.8, 0.7, 0.4, 0.3, 0.2, 0.1]
    assert sum(chance) / 8 == pytest.approx(0.53, abs=2e-3)
    assert (chance[0] + chance[2] + chance[6] + chance[7]) / 4 == pytest.approx(0.5)
    found = set()
    for seed in range(60):
        kept = nearest_subset(chance, 4, 0.5, torch.Generator().manual_seed(seed))
        assert len(set(kept)) == 4
        assert sum(chance[k] for k in kept) / 4 == pytest.approx(0.5, abs=0.0126)
        found.add(tuple(kept))
    assert len(found) > 3
    best = nearest_subset(chance, 4, 1.0, torch.Generator().manual_seed(0))
    assert best == [0, 1, 2, 3]
    assert sum(chance[k] for k in best) / 4 == pytest.approx(0.81, abs=3e-3)


def test_equal_chances_are_chosen_from_at_random():
    times = torch.zeros(6)
    for seed in range(300):
        times[nearest_subset([0.5] * 6, 3, 0.5, torch.Generator().manual_seed(seed))] += 1
    assert (times > 120).all()


def test_chances_of_bins_by_hand():
    # sigmoid(0) = .5 is in bin 2 of 4, sigmoid(-2) = .12 in bin 0, sigmoid(9) in the last
    assert bins_of(torch.tensor([0.0, -2.0, 9.0, 40.0]), 4).tolist() == [2, 0, 3, 3]
    found = success_of_bins(torch.tensor([0.0, 3.0]), torch.tensor([0, 4]))
    assert found.tolist() == pytest.approx([0.5, 4 / 6])


def test_the_head_is_trained_as_torch_would():
    rng = torch.Generator().manual_seed(0)
    head = new_head(6, rng)
    states, success = torch.randn(20, 6, generator=rng), (torch.rand(20, generator=rng) < 0.3) * 1.0
    assert scores(head, states).tolist() == [0.0] * 20
    theirs = {name: torch.nn.Parameter(head[name].clone()) for name in WEIGHTS}
    adam = torch.optim.Adam(theirs.values(), lr=0.01)
    for round_ in range(3):
        head, loss = trained(head, states, success, 0.01)
        for step in range(4):
            adam.zero_grad()
            entropy = torch.nn.functional.binary_cross_entropy_with_logits(
                scores(theirs, states), success
            )
            assert step or loss == pytest.approx(entropy.item(), rel=1e-5)
            assert round_ or step or loss == pytest.approx(math.log(2))
            entropy.backward()
            adam.step()
    for name in WEIGHTS:
        torch.testing.assert_close(head[name], theirs[name].detach(), rtol=1e-4, atol=1e-6)


def test_equals_plain_samples_when_all_go_on():
    ours, theirs = Steps(StopSureAnswers(detect_at=2, keep=1.0))(), Steps(SampleIndependently())()
    for name, column in theirs.batch.columns.items():
        assert ours.batch[name].equal(column), name
    assert ours.metrics["pruning/stopped"] == 0
    late = Steps(StopSureAnswers(detect_at=50))()
    assert late.batch["id_T"].equal(theirs.batch["id_T"])
    assert late.metrics["pruning/examined"] == 0


@pytest.mark.parametrize("keep", [0.25, 0.5, 0.75])
def test_the_share_of_the_examined_goes_on_and_short_answers_stay(keep):
    steps = Steps(StopSureAnswers(detect_at=3, keep=keep))
    plain = Steps(SampleIndependently())
    for seed in range(3):
        found, whole = steps(seed), plain(seed).batch
        texts = dict(zip(whole["rollout_uid_B"].tolist(), answers(whole), strict=True))
        group = dict(zip(texts, whole["group_B"].tolist(), strict=True))
        left = found.batch["rollout_uid_B"].tolist()
        assert answers(found.batch) == [texts[uid] for uid in left]
        stopped = 0
        for number in (0, 1):
            own = [uid for uid in texts if group[uid] == number]
            short = [uid for uid in own if len(texts[uid]) < 3 or (len(texts[uid]) == 3
                     and texts[uid][-1] == 0)]  # fmt: skip
            examined = len(own) - len(short)
            assert set(short) <= set(left)
            mine = [uid for uid in left if group[uid] == number]
            assert len(mine) == len(short) + math.ceil(keep * examined - 1e-9)
            assert int((found.batch["group_B"] == number).sum()) == len(mine)
            stopped += len(own) - len(mine)
        assert found.metrics["pruning/stopped"] == stopped > 0
        assert found.num_discarded == 3 * stopped
        assert steps.drawn == int(found.batch["mask_T"].sum()) + 3 * stopped


def test_head_learns_what_is_right_and_groups_come_near_the_target():
    """A start of its own tells every outcome; with `target` 1 only right ones go on by and by."""
    steps = Steps(StopSureAnswers(detect_at=2, target=1.0, head_lr=0.05))
    for seed in range(25):
        steps(seed)
    head = steps.state["head"]
    states = torch.eye(5)[[RIGHT, WRONG]]
    bins = bins_of(scores(head, states), 10)
    chance = success_of_bins(steps.state["hits"], steps.state["counts"])[bins]
    assert chance[0] > 0.8
    assert chance[1] < 0.35
    right = []
    for seed in range(40, 50):
        batch = steps(seed).batch
        right += [text[0] == RIGHT for text in answers(batch) if len(text) > 2]
    assert sum(right) / len(right) > 0.75  # of plain answers half; some prompts have too few
    assert steps.state["waiting"] == {}
    assert int(steps.state["counts"].sum()) > 150


def test_unscored_and_dropped_rollouts_teach_nothing():
    part = StopSureAnswers(detect_at=3)
    steps = Steps(part)
    rng = torch.Generator().manual_seed(0)
    found = rolled_out(part, DRAWS, steps.engine, steps.services, rng, steps.state)
    size = found.batch.size("B")
    uids, nobody_B = found.batch["rollout_uid_B"], torch.zeros(size, dtype=torch.bool)
    waiting = found.state["waiting"]  # with the states of their third tokens
    texts = dict(zip(uids.tolist(), answers(found.batch), strict=True))
    first = [texts[uid][0] for uid in waiting["uids"].tolist()]
    assert waiting["states"].equal(torch.eye(5)[first])
    state = part.observe(uids, torch.ones(size), nobody_B, found.state)
    assert state["counts"].sum() == 0
    assert state["waiting"] == {}
    (row, *_) = (n for n, uid in enumerate(uids.tolist()) if uid in found.state["waiting"]["uids"])
    state = part.observe(uids[[row]], torch.ones(1), torch.ones(1).bool(), found.state)
    assert (int(state["counts"].sum()), int(state["hits"].sum())) == (1, 1)


def test_a_saved_state_goes_on_as_it_would_have(tmp_path):
    one, other = Steps(StopSureAnswers(detect_at=2)), Steps(StopSureAnswers(detect_at=2))
    assert one(1).batch["id_T"].equal(other(1).batch["id_T"])
    torch.save(other.state, tmp_path / "state.pt")
    other.state = torch.load(tmp_path / "state.pt", weights_only=True)
    for seed in (2, 3):
        ours, theirs = one(seed), other(seed)
        assert ours.batch["id_T"].equal(theirs.batch["id_T"])
        assert ours.metrics == theirs.metrics


def test_composes_and_mistakes_are_refused():
    part = arrol(L_detect=9, K=0.75, rho=0.4, num_bins=5, head_lr=0.1).rollout.part
    assert part == StopSureAnswers(detect_at=9, keep=0.75, target=0.4, num_bins=5, head_lr=0.1)
    for wrong in ("L_detect=0", "K=0", "K=1.5", "rho=2", "num_bins=0", "head_lr=-1"):
        with pytest.raises(UserError, match="stop_sure_answers"):
            notation.recipe(f"arrol({wrong})")


def test_a_run_trains_its_head(tmp_path):
    raw = Lab.make(tmp_path).raw("arrol(L_detect=2, head_lr=0.01)", "even")
    raw["training"] |= {"steps": 5}
    Runner().whole(raw, tmp_path / "run")
    lines = without_times(tmp_path / "run")
    assert sum(line["pruning/stopped"] for line in lines) > 5
    assert lines[-1]["pruning/head_loss"] > 0
