"""A mixture of experts: the learner replays the engine's routing; load, balance, mismatch."""

import copy
import json
import math

import pytest
import torch
from families import build, save
from torch import nn
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeTopKRouter,
    load_balancing_loss_func,
)

from strop.batch.batch import EXPERTS, Batch
from strop.engines.asynchronous import asynchronous
from strop.engines.base import Event, Request
from strop.engines.local.engine import LocalEngine
from strop.method.part import Draw
from strop.parts.rollout.base import Turn, assemble, assemble_turns, with_contexts
from strop.support.experts import Experts, balance, experts_of
from strop.training.learner import routing
from strop.training.learner.policy import Policy
from strop.training.learner.routing import LOAD, MISMATCH, OF_ENGINE, OLD
from strop.training.learner.step_models import StepModels, refresh

NAMES = ("logp_T", "entropy_T", "mean_logp_T")


@pytest.fixture
def model():
    return build("qwen3-moe")


def rollouts(model, number=6, **options) -> Batch:
    """Answers of the local engine to two prompts, with the experts of their tokens."""
    prompts = [(3, 4, 5, 6), (7, 8, 9)]
    want = frozenset({"logp_model", "entropy", "experts"})
    draws = [Draw(uid, number // 2) for uid in range(2)]
    requests = [
        Request(prompts[row // (number // 2)], 6, seed=row, want=want) for row in range(number)
    ]
    engine = LocalEngine(model, num_slots=4, **options)
    return assemble(draws, asynchronous(engine).sample(requests))


def moved(model) -> None:
    """Other routers, as after an update: many tokens would go elsewhere."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Qwen3MoeTopKRouter):
                module.weight += 0.2 * torch.randn(
                    module.weight.shape, generator=torch.Generator().manual_seed(0)
                )


def test_a_choice_is_among_all_experts():
    """Of tokens in rows too; but not within groups, of which there may be as many as experts."""
    experts = Experts(1, num_experts=4, top_k=2)
    assert experts.is_router_call(torch.zeros(2, 3, 4), 2)
    assert not experts.is_router_call(torch.zeros(2, 4, 3), 2)
    assert not experts.is_router_call(torch.zeros(3, 4), 1)


def test_a_replayed_choice_has_the_gates_of_now_and_a_gradient():
    # One token, experts that give 1, 10 and 100, scores softmax(3, 2, 1), k = 2. Of its own it goes
    # to experts 0 and 1. Replayed {2, 1}: gates e and 1 over (1 + e), of the scores of now.
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.tensor([[3.0, 2.0, 1.0]]))

        def forward(self, ids):
            probs = self.logits.softmax(-1)
            gates, chosen = torch.topk(probs, 2, dim=-1)
            gates = gates / gates.sum(-1, keepdim=True)
            return (gates * torch.tensor([1.0, 10.0, 100.0])[chosen]).sum()

    class Model(nn.Module):
        class config:
            num_local_experts, num_experts_per_tok = 3, 2

        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, input_ids, use_cache):
            return self.block(input_ids)

    model = Model()
    experts = experts_of(model)
    assert (experts.num_layers, experts.num_experts, experts.top_k) == (1, 3, 2)
    e = math.e
    with experts.watching() as watch:
        plain = model(None, False)
    assert watch.chosen().tolist() == [[0, 1]]
    assert plain.item() == pytest.approx((e * 1 + 10) / (e + 1))
    with experts.watching(torch.tensor([[2, 1]])) as watch:
        found = model(None, False)
    assert watch.chosen().tolist() == [[0, 1]]  # what the router would have chosen
    assert watch.used().tolist() == [[2, 1]]
    assert found.item() == pytest.approx((e * 10 + 100) / (e + 1))
    found.sum().backward()
    slope = (10 - 100) * e / (1 + e) ** 2  # of a sigmoid, in logit 1 minus logit 2
    assert model.block.logits.grad.tolist() == [pytest.approx([0.0, slope, -slope], abs=1e-5)]
    with experts.watching(torch.tensor([[-1, -1]])) as watch:  # unknown: the router's own
        assert model(None, False).item() == plain.item()


@pytest.mark.parametrize("options", [{}, {"speculate": 3}, {"max_cached_tokens": 24}])
def test_the_engine_notes_the_experts_of_a_plain_pass(model, options):
    """Also with drafts, and where rows wait and are computed again for lack of room."""
    batch, experts = rollouts(model, **options), experts_of(model)
    ends = torch.cat([batch["rollout_T"].diff() > 0, torch.tensor([True])])
    assert torch.equal((batch[OF_ENGINE] < 0).any(1), ends)  # no pass reads an answer's last token
    for rollout in range(batch.size("B")):
        rows = batch["rollout_T"] == rollout
        with experts.watching() as watch, torch.no_grad():
            model(batch["id_T"][rows][None], use_cache=False)
        assert torch.equal(watch.chosen()[:-1], batch[OF_ENGINE][rows][:-1])


def test_several_turns_know_the_experts_of_their_context():
    """A turn's request tells those of all its context; what was known stays, in its own place."""

    def events(first, size):
        return tuple(n.to_bytes(2, "little") * 2 for n in range(first, first + size))

    turns = [
        Turn((5, 6), [Event(0, (7, 8), (0.0, 0.0), 0, experts=events(10, 3))]),
        # the context 5 6 7 8 9 with its answer 3: five passes, of which the first three are known
        Turn((9,), [Event(1, (3,), (0.0,), 0, experts=events(20, 5))]),
        # a context of its own, and an answer in two events
        Turn(
            (4, 4),
            [
                Event(2, (1,), (0.0,), 0, experts=events(30, 2)),
                Event(2, (2,), (0.0,), 1, experts=events(32, 1)),
            ],
            opens=True,
        ),
    ]
    batch = assemble_turns([Draw(0, 1)], [0], [turns], [False])
    batch = with_contexts(batch, [turns])
    assert batch["id_T"].tolist() == [5, 6, 7, 8, 9, 3, 4, 4, 1, 2]
    assert batch[EXPERTS][:, 0].tolist() == [10, 11, 12, 23, 24, -1, 30, 31, 32, -1]
    given = assemble_turns([Draw(1, 1)], [1], [[Turn((5,), [Event(3, (6,), (0.0,), 0)])]], [False])
    joined = given.set(sequence_T=torch.zeros(2, dtype=torch.int64)).join(batch)
    assert joined[EXPERTS][:3, 1].tolist() == [-1, -1, 10]  # nobody told those of a given answer


def test_an_answer_in_two_requests_tells_each_pass_once(model):
    want = frozenset({"experts"})
    pool = asynchronous(LocalEngine(model, num_slots=4))
    whole = Request((3, 4, 5), 6, seed=1, want=want)
    (one,) = pool.sample([whole])
    (started,) = pool.sample([Request((3, 4, 5), 2, seed=1, want=want)])
    (rest,) = pool.sample([started.more(4)])
    (given,) = pool.sample([started.more(2, given=(9, 9))])

    def told(answer):
        return [each for event in answer.events for each in event.experts]

    assert (started + rest).ids == one.ids
    assert told(started + rest) == told(one)
    assert len(told(one)) == len(one.sequence) - 1
    assert len(told(started + given)) == len(given.sequence) - 1
    assert len(told(one.first(3))) == len(whole.ids) + 3 - 1


@pytest.mark.parametrize("share", ["off", "on"])
def test_replay_makes_the_learners_pass_the_engines(model, share):
    """Where routers move, replay keeps the learner nearer to the sampler; after it, they agree."""
    batch = rollouts(model)
    budget = 30
    replaying, plain = (Policy(model, budget, share, replay=name) for name in (OF_ENGINE, ""))
    found = [p.columns(batch, ("logp_T",), 1.0)["logp_T"] for p in (replaying, plain)]
    mask = batch["mask_T"]
    for each in found:
        torch.testing.assert_close(each[mask], batch["logp_sampler_T"][mask], atol=1e-5, rtol=0)
    moved(model)
    others = [p.columns(batch, ("logp_T",), 1.0)["logp_T"] for p in (replaying, plain)]
    gaps = [float((other - batch["logp_sampler_T"])[mask].abs().mean()) for other in others]
    assert 0 < gaps[0] < gaps[1]

    again = rollouts(model)  # with the weights of now
    mine = replaying.columns(again, ("logp_T",), 1.0)["logp_T"]
    torch.testing.assert_close(
        mine[again["mask_T"]], again["logp_sampler_T"][again["mask_T"]], atol=1e-5, rtol=0
    )


def test_a_shared_prefix_replays_each_contexts_own_experts(model):
    """Contexts share no further than tokens and experts are equal: numbers are the plain ones."""
    batch = rollouts(model)
    experts = batch[OF_ENGINE].clone()
    last = (batch["rollout_T"] == 1).nonzero()[3, 0]  # of the prompt that it shares with 0 and 2
    experts[last] = (experts[last] + 1) % 4
    batch = batch.set(**{OF_ENGINE: experts})
    adjoint = torch.linspace(-1, 1, int(batch["mask_T"].sum()))
    found = []
    for share in ("off", "on"):
        policy = Policy(model, 1000, share, replay=OF_ENGINE)
        values = policy.push(
            batch, NAMES, lambda rows, _: {"logp_T": adjoint[rows]}, False, 1.0
        )  # fmt: skip
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        found.append((values, gradients))
    (plain, expected), (shared, gradients) = found
    for name in (*NAMES, MISMATCH):
        torch.testing.assert_close(shared[name], plain[name], atol=1e-5, rtol=1e-4)
    assert float(plain[MISMATCH].max()) > 0
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-4)
    assert any("gate.weight" in name and bool(g.any()) for name, g in gradients.items())


def test_the_old_experts_are_those_of_the_first_pass(model):
    batch = rollouts(model)
    plain = batch.set(**{OF_ENGINE: torch.full_like(batch[OF_ENGINE], -1)})
    models = StepModels(Policy(model, 30, "on", replay=OLD), 1.0)
    found = refresh(plain, {OLD, "logp_old_T"}, models)
    known = batch[OF_ENGINE][:, 0] >= 0
    assert torch.equal(found[OLD][known], batch[OF_ENGINE][known].long())
    moved(model)
    names = {"logp_T"}
    held = models.policy.columns(found, tuple(names), 1.0)["logp_T"]
    free = Policy(model, 30, "on").columns(found, tuple(names), 1.0)["logp_T"]
    gaps = [(each - found["logp_old_T"])[found["mask_T"]].abs().mean() for each in (held, free)]
    assert 0 < gaps[0] < gaps[1]


def test_a_model_in_anothers_place_is_watched_by_its_own_experts(model):
    """As the sharded copy, which several processes train in place of the loaded model."""
    batch, policy = rollouts(model), Policy(model, 1000, replay=OF_ENGINE)
    policy.model = copy.deepcopy(model)
    values = policy.push(
        batch, NAMES, lambda rows, _: {"logp_T": torch.ones(int(batch["mask_T"].sum()))[rows]},
        False, 1.0,
    )  # fmt: skip
    assert float(values[MISMATCH].max()) == 0.0
    moved(policy.model)
    experts = policy.columns(batch, (routing.NOW,), 1.0)[routing.NOW]
    known = batch[OF_ENGINE][:, 0] >= 0
    assert torch.equal(experts[known], batch[OF_ENGINE][known].long())


def test_load_and_mismatch_by_hand():
    experts = Experts(2, 3, 2)
    #                       layer 0, layer 1
    used = torch.tensor([[0, 1, 2, 0], [1, 0, 2, 1], [0, 2, 2, 0], [-1, -1, -1, -1]])
    load = experts.load(used)
    assert load.tolist() == [
        pytest.approx([1, 2 / 3, 1 / 3]), pytest.approx([2 / 3, 1 / 3, 1])
    ]  # fmt: skip
    other = torch.tensor([[1, 0, 0, 2], [2, 0, 0, 1], [0, 2, 1, 0], [0, 1, 0, 1]])
    # alike; both layers differ; the second differs; unknown
    found = experts.mismatch(used, other)
    assert found[:3].tolist() == [0.0, 1.0, 0.5]
    assert bool(found[3].isnan())
    batch = assemble_turns([Draw(0, 1)], [0], [[Turn((5,), [])]], [False]).set(**{LOAD: load})
    metrics = routing.load_metrics(batch)
    share = [[1 / 2, 1 / 3, 1 / 6], [1 / 3, 1 / 6, 1 / 2]]
    entropy = -sum(p * math.log(p) for p in share[0]) / math.log(3)
    assert metrics == {
        "router/max_load": pytest.approx(1.5), "router/load_entropy": pytest.approx(entropy),
        "router/frac_dead_experts": 0.0, "router/max_load/layer_0": pytest.approx(1.5),
        "router/max_load/layer_1": pytest.approx(1.5),
    }  # fmt: skip


def test_the_balance_is_the_loss_of_transformers_layer_by_layer(model):
    ids = torch.arange(3, 15)[None]
    experts = experts_of(model)
    with experts.watching() as watch:
        logits = model.model(ids, use_cache=False, output_router_logits=True).router_logits
    found = balance(logits, experts.load(watch.chosen())).mean()
    expected = [load_balancing_loss_func((each,), experts.num_experts, 2) for each in logits]
    torch.testing.assert_close(found, torch.stack(expected).mean())
    found.backward()
    mine = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    logits = model.model(ids, use_cache=False, output_router_logits=True).router_logits
    each = [load_balancing_loss_func((each,), experts.num_experts, 2) for each in logits]
    torch.stack(each).mean().backward()
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, dict(model.named_parameters())[name].grad)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_replays_and_balances_and_goes_on(lab, strop, tmp_path):
    """The engine's experts are those of the first pass while its weights are the learner's."""
    place, found = save("qwen3-moe", tmp_path / "model"), {}
    words = lab.arguments("plan.num_epochs=2", "training.steps=2", "training.lr=3e-3")
    words[words.index("--model") + 1] = str(place)
    for mode, coef in (("R2", 0.0), ("R3", 0.0), ("R3", 0.5)):
        options = (f"model.router_replay={mode}", f"model.router_aux_loss_coef={coef}")
        folder = tmp_path / f"{mode}-{coef}"
        strop("train", "grpo", *words, *options, "--out", folder)
        found[mode, coef] = lines(folder)
    for old, engines in zip(found["R2", 0.0], found["R3", 0.0], strict=True):
        for name in ("ratio/log_abs_mean", "router/mismatch", "router/max_load", "loss"):
            assert engines[name] == pytest.approx(old[name], rel=1e-3, abs=1e-6)
    assert found["R3", 0.0][1]["router/frac_tokens_mismatched"] > 0
    balanced = found["R3", 0.5]
    assert balanced[0]["loss/router"] == pytest.approx(0.5 * balanced[0]["router/balance"])
    assert balanced[0]["router/balance"] > 2.0  # k, where load is even
    strop("train", "--resume", tmp_path / "R3-0.5", "training.steps=3")
    assert [line["step"] for line in lines(tmp_path / "R3-0.5")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.router_replay=R2"], "model.router_replay=R2 needs a mixture of experts"),
        (["model.router_aux_loss_coef=0.1"], "a part that reads router_balance_T needs a mix"),
    ],
)
def test_a_model_without_experts_is_refused(lab, strop, tmp_path, words, message):
    assert message in strop("train", "grpo", *lab.arguments(*words), "--out", tmp_path / "run").err


def test_an_engine_that_tells_no_experts_is_refused(model):
    engine = LocalEngine(model, num_slots=1)
    assert "experts" in engine.capabilities
    engine.capabilities -= {"experts"}
    policy = Policy(model)
    with pytest.raises(Exception, match=r"'vllm' does not report them: take engine\.kind=local"):
        routing.check("R3", frozenset(), policy, engine, "vllm")
    routing.check("R2", frozenset(), policy, engine, "vllm")
