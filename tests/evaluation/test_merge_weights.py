import math

import pytest
import torch
from models import save_model
from tokenizers.processors import TemplateProcessing

from strop.evaluation.merge_weights import (
    _share_slope,
    answer_loss,
    average,
    descended_shares,
    greedy_shares,
    inverse_loss_shares,
    read,
    write,
)
from strop.support.errors import UserError
from strop.training.learner.models import load

ROWS = [{"prompt": "1+2=", "completion": "3"}, {"prompt": "2*3=", "completion": "6"}]


def point(*values):
    return {"w": torch.tensor(values, dtype=torch.float64)}


def towards(target):
    return lambda weights: (weights["w"] - target).square().sum()


def test_averages():
    one, two = point(1.0, 2.0), point(3.0, 6.0)
    assert average([one, two])["w"].tolist() == [2, 4]
    assert average([one, two], [3, 1])["w"].tolist() == [1.5, 3]
    assert average([one])["w"].equal(one["w"])
    for call in (
        lambda: average([]),
        lambda: average([one, two], [1, -1]),
        lambda: average([one, two], [0, 0]),
        lambda: average([one, two], [1, math.nan]),
        lambda: average([one, point(1.0)]),
        lambda: inverse_loss_shares([1.0, -1.0]),
        lambda: inverse_loss_shares([1.0, math.nan]),
        lambda: answer_loss("tiny", []),
        lambda: answer_loss("tiny", [{"prompt": "1+2="}]),
        lambda: answer_loss("tiny", [{"prompt": "", "completion": "3"}]),
    ):
        with pytest.raises(UserError):
            call()


def test_inverse_losses_are_squared():
    # 1/1, 1/9: shares .9, .1
    assert inverse_loss_shares([1.0, 3.0]) == pytest.approx([0.9, 0.1])


def test_greedy_adds_the_best_of_all_that_are_left_and_stops_without_a_gain():
    # from 3: -.3 alone is best, then with .8 (.25); -.31 beside -.3 is worse, but all three: .063
    assert greedy_shares([point(2.69), point(3.8), point(2.7)], towards(3.0)) == [1 / 3] * 3
    # 1 is .6 away; with 4 it is .9, with 0 1.1
    assert greedy_shares([point(0.0), point(4.0), point(1.0)], towards(1.6)) == [0, 0, 1]
    # 2 is .4 away; with 3 .1, with 5 1.1; both: .93
    assert greedy_shares([point(5.0), point(2.0), point(3.0)], towards(2.4)) == [0, 0.5, 0.5]
    # a model without a loss, such as one that overflows, is never added
    nothing = point(float("nan"))
    assert greedy_shares([nothing, point(2.0), point(3.0)], towards(2.4)) == [0, 0.5, 0.5]


def test_slope_of_shares_worked_example():
    # theta 0 and 1, L = (theta - .8)^2, halves: dL/dtheta -.6, g (0, -.6), mean -.3
    models, shares = [point(0.0), point(1.0)], torch.tensor([0.5, 0.5]).double()
    value, slope = _share_slope(models, towards(0.8), shares)
    assert value == pytest.approx(0.09)
    assert slope.tolist() == pytest.approx([0.15, -0.15])


def test_descent_keeps_the_best_shares_that_it_met():
    models = [point(0.0), point(1.0)]
    assert descended_shares(models, towards(0.8)) == pytest.approx([0.2, 0.8], abs=0.02)
    assert descended_shares(models, towards(0.5), iterations=3) == [0.5, 0.5]  # it begins there
    # Adam forgets a factor that stays, but (L / .05)^2 falls: later steps are shorter
    adaptive = descended_shares(models, towards(0.8), adaptive=True)
    assert adaptive == pytest.approx([0.2615, 0.7385], abs=1e-3)


def test_merged_models_load_and_lose_less(tmp_path):
    folders = [save_model(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    models, loss = [read(f) for f in folders], answer_loss(folders[0], ROWS)
    by_hand = load(str(folders[0]))
    ids = [by_hand.tokenizer(r["prompt"] + r["completion"]).input_ids for r in ROWS]
    ids = torch.tensor([[*row, *by_hand.end_ids] for row in ids])
    logp = by_hand.model(input_ids=ids).logits.log_softmax(-1)[:, 3:5]
    wanted = -logp.gather(-1, ids[:, 4:6, None]).mean()
    torch.testing.assert_close(loss(models[0]), wanted)
    begins = by_hand.tokenizer
    begins.backend_tokenizer.post_processor = TemplateProcessing(
        single="<pad> $A <pad>", special_tokens=[("<pad>", 0)]
    )
    begins.save_pretrained(folders[1])  # a tokenizer that begins and ends texts with a token
    logp = by_hand.model(input_ids=torch.cat([ids[:, :1] * 0, ids], 1)).logits.log_softmax(-1)
    wanted = -logp[:, 4:6].gather(-1, ids[:, 4:6, None]).mean()
    torch.testing.assert_close(answer_loss(folders[1], ROWS)(models[0]), wanted)
    shares = descended_shares(models, loss, iterations=5)
    assert float(loss(average(models, shares))) <= float(loss(average(models)))
    place = write(average(models), folders[0], tmp_path / "merged")
    parents = [load(str(f)).model.state_dict() for f in folders]
    for name, weight in load(str(place)).model.state_dict().items():
        torch.testing.assert_close(weight, sum(p[name] for p in parents) / 2)
    with pytest.raises(UserError, match="exists"):
        write(models[0], folders[0], place)
