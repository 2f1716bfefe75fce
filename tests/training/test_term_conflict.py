"""Whether terms pull the weights apart: the numbers, the gradients, and an unchanged step."""

import math

import pytest
import torch
from models import Lab, without_times
from runs import Runner

from strop.training.learner.term_conflict import TermConflict, blocks_of, conflicts, products_of


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """With a lower and an upper half."""
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)


def test_worked_example():
    """Halves add up to (1, .5, 0) and (-.6, .8, .3): dot -.2, norms sqrt(1.25), sqrt(1.09)."""
    a, b = ([1.0, 0.0, 0.0], [0.0, 0.5, 0.0]), ([-0.6, 0.0, 0.3], [0.0, 0.8, 0.0])
    gradients = [[torch.tensor(half[:2]), torch.tensor(half[2:])] for half in (*a, *b)]
    found = conflicts(("one", "two"), products_of(gradients, ["lower", "head"]), 2)
    assert found["conflict/one_two/all"] == pytest.approx(-0.2 / math.sqrt(1.25 * 1.09))
    assert found["conflict/one_two/all"] == pytest.approx(-0.171, abs=5e-4)
    assert found["conflict/one_two/lower"] == pytest.approx(-0.2 / math.sqrt(1.25))
    assert "conflict/one_two/head" not in found  # the first term has no gradient there
    size = math.sqrt(1.25) + math.sqrt(1.09)
    assert found["conflict/share/one"] == pytest.approx(math.sqrt(1.25) / size)
    assert found["conflict/cancelled"] == pytest.approx(1 - math.hypot(0.4, 1.3, 0.3) / size)
    # across the halves: (1, 0, 0) (0, .8, 0) = 0 and (0, .5, 0) (-.6, 0, .3) = 0; halves of one: 0
    assert found["conflict/across/one_two/all"] == 0
    assert found["conflict/floor/one/all"] == 0
    # two equal terms, of halves (1, 0, 0) and (-.6, 0, .3): across them they are as one with itself
    halves = [gradients[0], gradients[2]] * 2
    same = conflicts(("one", "two"), products_of(halves, ["head", "head"]), 2)
    assert same["conflict/one_two/all"] == pytest.approx(1)
    assert same["conflict/floor/one/all"] == pytest.approx(-0.6 / math.sqrt(0.45))
    assert same["conflict/across/one_two/all"] == pytest.approx(-0.6 / math.sqrt(0.45))


def test_one_group_has_no_halves():
    gradients = [[torch.tensor([1.0, 0.5, 0.0])], [torch.tensor([-0.6, 0.8, 0.3])]]
    found = conflicts(("one", "two"), products_of(gradients, ["upper"]), 1)
    assert found["conflict/one_two/upper"] == pytest.approx(-0.171, abs=5e-4)
    assert not [name for name in found if "across" in name or "floor" in name]


BLOCK = {"head": ("embed_tokens", "model.norm."), "lower": ("layers.0.",), "upper": ("layers.1.",)}


class Beside(TermConflict):
    """Computes the same with plain passes, before the weights move."""

    def updated(self, terms, prepared, rng_of, number):
        super().updated(terms, prepared, rng_of, number)
        model = self.models.policy.model
        weights = dict(model.named_parameters())
        for group in (0, 1):
            for name, loss in plain_losses(model, prepared, group).items():
                grads = torch.autograd.grad(loss, [*weights.values()], retain_graph=True)
                self.plain[name, group] = dict(zip(weights, grads, strict=True))


def plain_losses(model, batch, group):
    """-share A ratio, and 0.1 share k3, over the answers of a group."""
    losses = {"policy": 0.0, "kl": 0.0}
    for rollout in (batch["group_B"] == group).nonzero().squeeze(1).tolist():
        rows = batch["rollout_T"] == rollout
        ids, own = batch["id_T"][rows], batch["mask_T"][rows][1:]
        logp = model(ids[None]).logits[0, :-1].log_softmax(-1)
        logp = logp.gather(1, ids[1:, None]).squeeze(1)[own]
        columns = {
            name: batch[name][rows][1:][own]
            for name in ("advantage_T", "logp_ref_T", "policy:share_T", "kl:share_T")
        }
        ratio, d = (logp - logp.detach()).exp(), logp - columns["logp_ref_T"]
        losses["policy"] -= (columns["policy:share_T"] * columns["advantage_T"] * ratio).sum()
        losses["kl"] += 0.1 * (columns["kl:share_T"] * ((-d).exp() + d - 1)).sum()
    return losses


def test_gradients_are_those_of_autograd(lab, tmp_path, monkeypatch):
    (beside,) = made = [Beside()]
    beside.plain = {}
    monkeypatch.setattr("strop.training.loop.TermConflict", made.pop)
    raw = lab.raw("grpo(beta=0.1)", training={"steps": 2, "lr": 0.05, "conflict_every": 2})
    run = Runner().whole(raw, tmp_path / "run")
    (line,) = (line for line in without_times(tmp_path / "run") if "conflict/cancelled" in line)
    assert line["step"] == 2
    assert len(beside.plain) == 4

    def product(one, other, parts):
        return sum(
            float((gradient * other[name]).sum())
            for name, gradient in one.items()
            if any(part in name for part in parts) or not parts
        )

    def cosine(one, other, parts):
        sizes = product(one, one, parts) * product(other, other, parts)
        return product(one, other, parts) / math.sqrt(sizes)

    whole = {
        term: {k: g + beside.plain[term, 1][k] for k, g in beside.plain[term, 0].items()}
        for term in ("policy", "kl")
    }
    for block, parts in (*BLOCK.items(), ("all", ())):
        expected = cosine(whole["policy"], whole["kl"], parts)
        assert line[f"conflict/policy_kl/{block}"] == pytest.approx(expected, abs=1e-4)
        for term in ("policy", "kl"):
            expected = cosine(beside.plain[term, 0], beside.plain[term, 1], parts)
            assert line[f"conflict/floor/{term}/{block}"] == pytest.approx(expected, abs=1e-4)
    assert [blocks_of(run.world.policy).count(b) for b in ("head", "lower", "upper")] == [2, 11, 11]


SEVERAL = {"plan.num_epochs": 2, "plan.num_minibatches": 2}


def test_a_step_is_the_same_without(lab, tmp_path):
    """With half-precision weights, whose gradients move on, and terms that see the whole update."""
    found = []
    for every in (0, 1):
        training = {"steps": 2, "lr": 0.01, "conflict_every": every}
        raw = lab.raw("clip_cov(beta=0.1)", training=training)
        raw["model"] |= {"dtype": "bfloat16"}
        raw["algorithm"] |= SEVERAL
        run = Runner().whole(raw, tmp_path / str(every))
        lines = without_times(tmp_path / str(every))
        own = [name for name in lines[0] if name.startswith("conflict/")]
        assert bool(own) == bool(every)
        lines = [{k: v for k, v in line.items() if k not in own} for line in lines]
        found.append((lines, run.loaded.model.state_dict()))
    (lines, weights), (measured, others) = found
    assert lines == measured
    assert all(torch.equal(weights[name], others[name]) for name in weights)
