import math

import pytest
import torch
from builders import flat_batch

from strop.method import part as parts
from strop.method.part import Draw, Use
from strop.parts.sampling.predict_success_from_history import PredictSuccessFromHistory


class Texts:
    def __init__(self, texts):
        self.texts = texts

    def prompt_text(self, uid):
        return self.texts[uid]


def test_prior_follows_like_prompts():
    part = PredictSuccessFromHistory()
    texts = Texts({1: "add 12 and 7", 2: "prove the theorem", 3: "add 19 and 7", 4: "prove it"})
    first = part((Draw(1, 2), Draw(2, 2)), texts, part.init())
    assert [draw.columns["prior_B"] for draw in first.value] == [0.5, 0.5]
    batch = flat_batch((1,) * 5, (0, 0, 1, 1, 2), outcome_B=[1.0, 1.0, 0.0, 0.0, 1.0])
    batch = batch.set(uid_P=torch.tensor([1, 2, 7]))  # 7 was not drawn here: a stored one
    state = parts.update(Use(part), batch, first.state, "observe")
    assert state["success_N"].tolist() == [1.0, 0.0]
    assert state["drawn"] == {}
    second = part((Draw(3, 2), Draw(4, 2), Draw(1, 2)), texts, state)
    easy, hard, known = (draw.columns["prior_B"] for draw in second.value)
    assert hard < 0.5 < easy < known
    assert second.metrics["prior/mean"] == pytest.approx((easy + hard + known) / 3)
    # the very prompt: kernel 1, another one about 0: (.5 + 1) / (1 + 1)
    assert known == pytest.approx(0.75, abs=0.02)
    short = PredictSuccessFromHistory(context=1)
    assert parts.update(Use(short), batch, first.state, "observe")["success_N"].tolist() == [0.0]


def test_prompts_in_flight_wait_for_the_end_of_their_own_step():
    """A step that is drawn before the one before it has ended loses nothing of either."""
    part, texts = PredictSuccessFromHistory(), Texts({1: "one", 2: "two"})
    first = part((Draw(1, 1),), texts, part.init())
    second = part((Draw(2, 1),), texts, first.state)
    batch = flat_batch((1,), (0,), outcome_B=[1.0])
    state = second.state
    for uid in (1, 2):
        state = parts.update(Use(part), batch.set(uid_P=torch.tensor([uid])), state, "observe")
    assert state["features_NF"].shape[0] == 2
    assert state["drawn"] == {}


def test_likeness_is_the_cosine_of_three_character_pieces():
    # " ab" and "ab " of "ab"; " ab", "abc" and "bc " of "abc"; nothing of them in "z": one in
    # common of 2 and of 3, m = 1/2
    part = PredictSuccessFromHistory(bandwidth=0.5, weight=2.0)
    texts = Texts({1: "ab", 2: "z", 3: "abc"})
    first = part((Draw(1, 1), Draw(2, 1)), texts, part.init())
    batch = flat_batch((1, 1), (0, 1), outcome_B=[1.0, 0.0]).set(uid_P=torch.tensor([1, 2]))
    state = parts.update(Use(part), batch, first.state, "observe")
    (draw,) = part((Draw(3, 1),), texts, state).value
    like, unlike = math.exp((1 / math.sqrt(6) - 1) / 0.5), math.exp(-1 / 0.5)
    assert draw.columns["prior_B"] == pytest.approx((2 * 0.5 + like) / (2 + like + unlike))
