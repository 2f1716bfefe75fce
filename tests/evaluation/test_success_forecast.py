"""Success predicted by a trained adapter or a classifier, and prompts routed by the prediction."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from builders import slope
from models import Lab
from torch.nn.functional import layer_norm

from strop.evaluation.success_forecast import _rate, fit_adapter, forecast, history_of, route
from strop.method.part import Draw
from strop.parts.sampling import _query_adapter as adapters
from strop.parts.sampling._query_adapter import QueryAdapter, Sizes, by_kernel, pair_loss
from strop.parts.sampling.predict_success_from_history import PredictSuccessFromHistory
from strop.recipes.v_zero import v_zero
from strop.support.errors import UserError

SMALL = Sizes(4, queries=6, width=6, bottleneck=8, dropout=0.0)


def test_loss_worked_example():
    # s = (1, 0): rank -log sigmoid(1) = .313262; outcomes 1, 0: (.313262 + .693147) / 2 = .503204
    logit, outcome = torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double()
    assert float(pair_loss(logit, outcome, 1.0)) == pytest.approx(0.3132617)
    assert float(pair_loss(logit, outcome, 0.0)) == pytest.approx(0.5032044)
    assert float(pair_loss(logit, outcome, 0.25)) == pytest.approx(0.4557188)
    # soft outcomes, .75 and .25: -(.75 log .731059 + .25 log .268941) = .563262, and .693147
    soft = pair_loss(logit, torch.tensor([0.75, 0.25]).double(), 0.0)
    assert float(soft) == pytest.approx((0.5632617 + 0.6931472) / 2)
    logit.requires_grad_()
    (found,) = torch.autograd.grad(pair_loss(logit, outcome, 0.25), logit)
    wanted = slope(lambda x: pair_loss(x, outcome, 0.25), logit.detach())
    torch.testing.assert_close(found, wanted, atol=1e-8, rtol=1e-6)


def test_adapter_is_attention_of_queries_that_the_last_state_moves():
    torch.manual_seed(0)
    sizes = Sizes(4, queries=2, width=3, heads=1, bottleneck=5, dropout=0.0)
    adapter, state_TD = QueryAdapter(sizes).eval(), torch.randn(3, 4)
    assert QueryAdapter(Sizes(1024))(torch.randn(2, 1024)).shape == (1008,)

    def by_hand(query_QW):
        value_TW = adapter.project(state_TD)
        weights, bias = adapter.attend.in_proj_weight.chunk(3), adapter.attend.in_proj_bias.chunk(3)
        inputs = (layer_norm(query_QW, (3,)), layer_norm(value_TW, (3,)), value_TW)
        q, k, v = (x @ w.T + b for x, w, b in zip(inputs, weights, bias, strict=True))
        told = torch.softmax(q @ k.T / 3**0.5, -1) @ v
        return adapter.attend.out_proj(told).flatten()

    torch.testing.assert_close(adapter(state_TD), by_hand(adapter.static))  # it begins unmoved
    torch.nn.init.normal_(adapter.shift[-1].weight)
    moved = adapter.static + adapter.shift(state_TD[-1]).view(2, 3)
    torch.testing.assert_close(adapter(state_TD), by_hand(moved))


def embed(text):
    """States whose first number says whether the policy solves it; the others are noise."""
    number = int(text)
    rng = torch.Generator().manual_seed(number)
    state_TD = torch.randn(3, 4, generator=rng)
    state_TD[:, 0] = 2.0 if number % 2 else -2.0
    return state_TD


def test_a_trained_adapter_foretells_prompts_that_it_never_saw(tmp_path, monkeypatch):
    one = [(str(n), float(n % 2)) for n in range(16)]
    other = [(str(n), float(1 - n % 2)) for n in range(16)]  # a policy that solves the others
    path = tmp_path / "adapter.safetensors"
    monkeypatch.setattr(adapters, "embedder", lambda name: embed)
    fresh = [(str(n), n % 2) for n in range(100, 116)]

    def error(history, turned):
        found = forecast(history, [text for text, _ in fresh], adapter=str(path))
        return sum(abs(p - abs(y - turned)) for p, (_, y) in zip(found, fresh, strict=True)) / 16

    fit_adapter({"one": one}, embed, path, epochs=0, sizes=SMALL)
    before = error(one[:12], 0)
    losses = fit_adapter({"one": one, "other": other}, embed, path, epochs=12, lr=1e-2, sizes=SMALL)
    assert losses[-1] < losses[0]
    # in context: the same adapter foretells either policy from its own history
    assert max(error(one[:12], 0), error(other[:12], 1)) < 0.15 < before
    with pytest.raises(UserError, match="solved prompts and failed"):
        fit_adapter({"one": one[1::2]}, embed, path)


def test_an_adapter_over_a_model_serves_the_recipe(lab: Lab, tmp_path):
    path = str(tmp_path / "adapter.safetensors")
    rows = [("1+2=", 1.0), ("9*9=", 0.0), ("1+1=", 1.0), ("8*9=", 0.0)]
    fit_adapter({"one": rows * 2}, str(lab.model), path, epochs=1)
    (predict, _) = (use.part for use in v_zero(adapter=path).sampling[-2:])
    assert predict == PredictSuccessFromHistory(adapter=path)
    assert predict.init()["features_NF"].shape == (0, 1008)
    known_NF = torch.stack([predict.features(text) for text, _ in rows])
    torch.testing.assert_close(known_NF.norm(dim=-1), torch.ones(4))
    wanted = by_kernel(known_NF, torch.tensor([1.0, 0, 1, 0]), known_NF[:1], 0.1, 1.0)
    assert forecast(rows, ["1+2="], adapter=path) == pytest.approx(wanted.tolist())
    with pytest.raises(UserError, match="cannot be read"):
        PredictSuccessFromHistory(adapter=str(lab.data)).init()
    with pytest.raises(UserError, match="cannot be loaded"):
        fit_adapter({"one": rows}, str(tmp_path), path)


def test_a_classifier_stands_for_the_kernel_once_both_kinds_are_known(tmp_path):
    file = tmp_path / "nearest.py"
    file.write_text(
        "def nearest(history_NF, success_N, feature_MF):\n"
        "    return success_N[(feature_MF @ history_NF.T).argmax(-1)]\n"
    )
    place = f"{file}:nearest"
    rows = [("add 1 and 2", 0.9), ("prove this", 0.2)]
    assert forecast(rows, ["add 1 and 3", "prove it"], classifier=place) == pytest.approx(
        [0.9, 0.2]
    )
    alone = rows[:1]
    assert forecast(alone, ["add 3"], classifier=place) == forecast(alone, ["add 3"])
    assert forecast([], ["add 3"], classifier=place) == [0.5]
    part = v_zero(classifier=place).sampling[-2].part

    class Texts:
        def prompt_text(self, uid):
            return rows[uid][0]

    state = {"features_NF": torch.stack([part.features(text) for text, _ in rows]),
             "success_N": torch.tensor([0.9, 0.2]), "drawn": {}}  # fmt: skip
    told = part((Draw(1, 2),), Texts(), state).value
    assert told[0].columns["prior_B"] == pytest.approx(0.2)


def test_prompts_go_to_the_policy_that_is_worth_most():
    # "ab" itself, known with 1 and 0, kernel 1: P = (1 m + y) / 2 = 1, 0. Worth of large at beta
    # .6: .6 + .4 * 0, of small 0 + .4 * .9
    histories = {"small": [("ab", 0.0)], "large": [("ab", 1.0)]}
    found = route("ab", histories, {"small": 0.1, "large": 1.0}, 0.6)
    assert found.policy == "large"
    assert found.worth == {"small": pytest.approx(0.36), "large": pytest.approx(0.6)}
    assert route("ab", histories, {"small": 0.1, "large": 1.0}, 0.4).policy == "small"
    assert route("ab", histories, {"small": 0.5, "large": 0.5}, 0.0).policy == "small"  # a tie
    for costs, beta in (({"small": 0.1}, 0.5), ({"small": 2.0, "large": 0.0}, 0.5),
                        ({"small": 0.1, "large": 0.2}, 1.5)):  # fmt: skip
        with pytest.raises(UserError, match="route"):
            route("ab", histories, costs, beta)


def test_history_of_a_run(tmp_path):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for step, rows in ((2, [(7, 0, "b", 1.0), (7, 1, "b", 0.0)]),
                       (10, [(7, 0, "b", 0.0), (5, 0, "a", 1.0), (5, 0, "a", -3.0)])):  # fmt: skip
        names = ("step", "uid", "draw", "prompt", "reward")
        table = [dict(zip(names, (step, *row), strict=True)) | {"scored": True} for row in rows]
        unscored = {"step": step, "draw": 0, "reward": 0.0, "scored": False}
        table += [unscored | {"uid": 5, "prompt": "a"}, unscored | {"uid": 9, "prompt": "c"}]
        # an answer of step 2 out of a store: in step 10 it is replayed
        stored = {"step": step, "uid": 8, "draw": 2 * 2**41, "prompt": "d", "reward": 1.0}
        table += [stored | {"scored": True}]
        pq.write_table(pa.Table.from_pylist(table), folder / f"step-{step:06d}.parquet")
    assert history_of(tmp_path) == [("b", 1.0), ("b", 0.0), ("d", 1.0), ("b", 0.0), ("a", 0.5)]
    assert history_of(tmp_path, newest=2) == [("b", 0.0), ("a", 0.5)]
    with pytest.raises(UserError, match="no rollouts"):
        history_of(folder)
    pq.write_table(pa.table({"step": [1], "uid": [0]}), folder / "step-000011.parquet")
    with pytest.raises(UserError, match=r"step-000011\.parquet is damaged .*no column draw"):
        history_of(tmp_path)


def test_the_rate_rises_and_then_falls_to_nothing():
    # half of the way behind a warm-up of 2: (1 + cos(pi / 2)) / 2
    found = [_rate(step, 2, 10) for step in (0, 1, 2, 6, 10)]
    assert found == pytest.approx([0, 0.5, 1, 0.5, 0])
