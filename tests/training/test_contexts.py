"""Rollouts whose turns have contexts of their own, as with an environment that rewrites them."""

import pytest
import torch
from models import Lab, exact_norms
from runs import world_of

from strop.batch import segments
from strop.batch.batch import Batch
from strop.parts.curation._rows import turn_rows
from strop.parts.probe._answers import prefixes
from strop.parts.probe._contexts import turns_of
from strop.support.errors import UserError
from strop.training.learner import prefix_sharing
from strop.training.services.scoring import gradient_norms
from strop.training.step import train_step

# Two episodes as (shown, done) in tokens: of three turns and of one.
EPISODES = (
    (((3, 4, 5), (6, 7)), ((8,), (9, 3)), ((4, 10), (5,))),
    (((5, 6), (7, 8, 9)),),
)


def batch_of(rewritten):
    """The same episodes as growing sequences, or each turn after all that came before it."""
    turns, masks, rollouts, ids, contexts = [], [], [], [], []
    for rollout, episode in enumerate(EPISODES):
        before = []
        for shown, done in episode:
            given = [*before, *shown] if rewritten else list(shown)
            turns += [len(rollouts)] * (len(given) + len(done))
            contexts += [len(rollouts) if rewritten else rollout] * (len(given) + len(done))
            masks += [False] * len(given) + [True] * len(done)
            ids += [*given, *done]
            before += [*shown, *done]
            rollouts.append(rollout)
    group_B = torch.tensor([0, 0])
    return Batch({
        "turn_T": torch.tensor(turns), "mask_T": torch.tensor(masks), "id_T": torch.tensor(ids),
        "rollout_K": torch.tensor(rollouts), "index_K": torch.tensor([0, 1, 2, 0]),
        "group_B": group_B, "uid_P": torch.tensor([0]), "draw_P": torch.tensor([0]),
        **({"sequence_T": torch.tensor(contexts)} if rewritten else {}),
    })  # fmt: skip


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    lab = Lab.make(tmp_path_factory.mktemp("lab"), layers=2)
    _, world = exact_world(lab, lab.raw())
    yield world.policy
    world.services.close()


def exact_world(lab, raw):
    return world_of({**raw, "model": {"name": str(lab.model), "dtype": "float64"}})


@pytest.mark.parametrize(("share", "size"), [("off", None), ("on", 16)])
def test_passes_share_prefixes_where_they_are_to(policy, share, size, monkeypatch):
    monkeypatch.setattr(policy, "share", share)
    found = policy._layout(batch_of(rewritten=True))
    assert (found and found.forest.size) == size


@pytest.mark.parametrize("share", ["off", "on"])
@pytest.mark.parametrize("budget", [1, 24, 1000])
def test_a_token_sees_its_own_context_alone(policy, budget, share, monkeypatch):
    exact_norms(monkeypatch)
    policy.token_budget, policy.share = budget, share
    grown, rewritten = batch_of(rewritten=False), batch_of(rewritten=True)
    expected = policy.columns(grown, ("logp_T", "entropy_T"), 1.0)
    found = policy.columns(rewritten, ("logp_T", "entropy_T"), 1.0)
    for name, values in expected.items():
        torch.testing.assert_close(
            found[name][rewritten["mask_T"]], values[grown["mask_T"]], rtol=1e-10, atol=1e-12
        )
    # without sequence_T the second turn would see the first one's context twice
    flat = Batch({n: c for n, c in rewritten.columns.items() if n != "sequence_T"})
    other = policy.columns(flat, ("logp_T",), 1.0)["logp_T"][flat["mask_T"]]
    assert not torch.allclose(other, expected["logp_T"][grown["mask_T"]], atol=1e-3)


def test_gradients_are_those_of_the_growing_sequence(policy):
    grown, rewritten = batch_of(rewritten=False), batch_of(rewritten=True)
    torch.testing.assert_close(
        gradient_norms(policy, rewritten, 1.0), gradient_norms(policy, grown, 1.0)
    )


def test_passes_stay_within_the_budget():
    batch = batch_of(rewritten=True)  # contexts of 5, 8, 10 tokens, and one of 5
    assert batch.contexts()[1] == 4
    assert segments.count(*batch.contexts()).tolist() == [5, 8, 11, 5]
    assert [part.tolist() for part in batch.split(43)] == [[1], [0]]  # 4 * 11 is more
    assert [part.tolist() for part in batch.split(44)] == [[1, 0]]
    assert [part.tolist() for part in batch_of(rewritten=False).split(22)] == [[1, 0]]


def test_shared_passes_count_what_contexts_have_in_common_once():
    # contexts of 5, 8 and 11 tokens, each the beginning of the next, and one of 5
    batch = batch_of(rewritten=True)
    rows = prefix_sharing.worthwhile(batch, "on", 8)
    assert rows.num_nodes == 11 + 5
    assert [part.tolist() for part in prefix_sharing.split(batch, rows, 16)] == [[0, 1]]
    assert [part.tolist() for part in prefix_sharing.split(batch, rows, 15)] == [[0], [1]]
    assert prefix_sharing.layout(batch, "on", 8, 16).forest.size == 16


def test_rows_of_turns_and_prefixes_end_where_the_context_begins():
    grown, rewritten = batch_of(rewritten=False), batch_of(rewritten=True)
    last = torch.tensor([2, 3])
    one, other = (turn_rows(batch, last) for batch in (grown, rewritten))
    assert one["id_T"].equal(other["id_T"])
    assert one["mask_T"].equal(other["mask_T"])
    found = [prefixes(batch, batch["mask_T"], after=True) for batch in (grown, rewritten)]
    assert found[0] == found[1]
    with pytest.raises(UserError, match="rewrites=False"):
        turns_of(rewritten)


ENVIRONMENT = """
from strop.environments.base import Environment, Observation


class Notes(Environment):
    max_turns, max_tokens, reward_range, rewrites = 3, 2, (0.0, 3.0), True

    def reset(self, seed):
        self.notes = f"{seed % 7}"
        return Observation(f"{self.notes}:")

    def step(self, action):
        digits = sum(c.isdigit() for c in action)
        self.notes += str(digits)
        return Observation(f"{self.notes}:", float(digits % 2), len(self.notes) == 4)
"""


def test_engine_and_trainer_agree_on_rewritten_contexts(tmp_path):
    lab = Lab.make(tmp_path)
    file = tmp_path / "notes.py"
    file.write_text(ENVIRONMENT, encoding="utf-8")
    raw = lab.raw("mrs")
    raw["data"] = {"task": f"{file}:Notes", "train_size": 6, "validation_size": 2}
    raw["reward"], raw["algorithm"] = {}, {"sampling.num_prompts": 2, "sampling.num_rollouts": 4}
    algorithm, world = exact_world(lab, raw)
    stepped = train_step(world, algorithm, {}, 1)
    batch = stepped.batch
    assert batch.contexts()[1] == batch.size("K") == 24
    policys = batch["mask_T"]
    torch.testing.assert_close(
        batch["logp_old_T"][policys], batch["logp_sampler_T"][policys].double(), atol=1e-5, rtol=0
    )
    assert stepped.metrics["mismatch/dropped_fraction"] == 0
    world.services.close()
    texts = world.services.texts
    first_K = segments.first(batch["turn_T"], 24)
    ends = [*first_K.tolist()[1:], batch.size("T")]
    for row, (start, end) in enumerate(zip(first_K.tolist(), ends, strict=True)):
        given = batch["id_T"][start:end][~policys[start:end]].tolist()
        assert len(texts.decode(given)) == 2 + int(batch["index_K"][row])  # "3:", "31:", "312:"
