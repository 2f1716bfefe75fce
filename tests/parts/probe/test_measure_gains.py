"""Gains of answers and of feedback against forward passes of the whole model, token by token."""

from functools import partial

import pytest
import torch
from builders import run
from fakes.services import FakeEpisodes, FakeScoring, FakeServices, FakeTexts
from models import save_model, tokenizer
from transformers import AutoModelForCausalLM

from strop.batch.batch import Batch
from strop.parts.probe.measure_answer_gain import MeasureAnswerGain
from strop.parts.probe.measure_feedback_gain import MeasureFeedbackGain, _hide
from strop.support.errors import UserError
from strop.training.learner.policy import Policy

# (observation, action) of each turn: two rollouts of one prompt, one of another.
ROLLOUTS = [
    [("1+2:", "3*"), ("=5:", "3"), ("0", "8,")],
    [("1+2:", "3*"), ("=7:", "4")],
    [("9-1:", "2")],
]
ANSWERS = [{"answer": "34"}, {"answer": ["8", "9"]}]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp("model"))
    return Policy(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


PIECES = {id: piece for piece, id in tokenizer().get_vocab().items()}


def ids(text):
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def rollouts():
    turns = [turn for rollout in ROLLOUTS for turn in rollout]
    tokens, mask, of_turn = [], [], []
    for row, (shown, action) in enumerate(turns):
        tokens += ids(shown) + ids(action)
        mask += [False] * len(shown) + [True] * len(action)
        of_turn += [row] * len(shown + action)
    lengths = torch.tensor([len(rollout) for rollout in ROLLOUTS])
    return Batch(
        {
            "turn_T": torch.tensor(of_turn), "id_T": torch.tensor(tokens),
            "mask_T": torch.tensor(mask),
            "rollout_K": torch.arange(3).repeat_interleave(lengths),
            "group_B": torch.tensor([0, 0, 1]), "uid_P": torch.tensor([0, 1]),
            "draw_P": torch.zeros(2, dtype=torch.int64),
        }
    )  # fmt: skip


def services(policy, rows=ANSWERS, context=64, frame=("", "")):
    class Episodes(FakeEpisodes):
        def observation_ids(self, text, last):
            begin = frame[0] if last in ids("*3") else ""  # what the actions below end with
            return tuple(ids(begin + text + frame[1]))

    return FakeServices(
        FakeTexts(pieces=PIECES, rows=dict(enumerate(rows))),
        scoring=FakeScoring(partial(policy.columns, temperature=1.0), context),
        episodes=Episodes(),
    )


def logp(policy, before, text):
    """Mean log-probability of a text after another, by one plain forward pass."""
    tokens = ids(before + text)
    with torch.no_grad():
        found = torch.log_softmax(policy.model(torch.tensor([tokens])).logits[0], dim=-1)
    places = range(len(before), len(tokens))
    return sum(float(found[t - 1, tokens[t]]) for t in places) / len(places)


def likely(policy, before, answer):
    return torch.tensor(logp(policy, before, answer)).exp().item()


@pytest.mark.parametrize("opening", ["", "=("])
def test_a_turn_earns_the_answers_gain_and_the_last_the_outcome(policy, opening):
    asked = services(policy)
    outcome_B = torch.tensor([1.0, 0.5, 0.25])
    batch = rollouts()
    batch = batch.set(outcome_B=outcome_B)
    found = run(MeasureAnswerGain(opening), batch, services=asked).value
    starts = ["1+2:", "1+2:3*=5:", "1+2:3*=5:30", "1+2:", "1+2:3*=7:"]
    p = [likely(policy, start + opening, "34") for start in starts]
    wanted = [p[1] - p[0], p[2] - p[1], 1.0, p[4] - p[3], 0.5, 0.25]
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)
    assert asked.scoring.scored == [(5, "current")]  # the shared prompt once, and the other prompt


def test_without_an_answer_or_room_there_is_no_gain(policy):
    batch = rollouts().set(outcome_B=torch.tensor([1.0, 0.5, 0.25]))
    nothing = [0, 0, 1.0, 0, 0.5, 0.25]
    rows = [{"answer": None}, {"answer": []}]

    def gained(*args, reference="answer", **options):
        part = MeasureAnswerGain(reference=reference)
        return run(part, batch, services=services(policy, *args, **options)).value.tolist()

    assert gained(rows) == nothing
    assert gained(context=5) == nothing
    short = gained(context=11)
    assert short[1] == 0
    assert short[0] != 0
    with pytest.raises(UserError, match=r"reads the column target.*there are answer"):
        gained(reference="target")


def gains(policy, **options):
    batch = rollouts()
    logp_old_T = policy.columns(batch, ("logp_T",), 1.0)["logp_T"]
    asked = services(policy, **options)
    batch = batch.set(logp_old_T=logp_old_T)
    return run(MeasureFeedbackGain("0("), batch, services=asked).value, asked


def test_feedback_is_worth_what_it_did_to_the_next_action(policy):
    found, asked = gains(policy)
    # "=5:" and "=7:" become "0((": the last turns and the feedback "0", which is the placeholder's
    # own beginning, have none.
    wanted = [
        logp(policy, "1+2:3*=5:", "3") - logp(policy, "1+2:3*0((", "3"), 0, 0,
        logp(policy, "1+2:3*=7:", "4") - logp(policy, "1+2:3*0((", "4"), 0, 0,
    ]  # fmt: skip
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)
    assert asked.scoring.scored == [(2, "current")]


def test_what_a_template_writes_around_the_feedback_stays(policy):
    found, _ = gains(policy, frame=("=", ":"))
    wanted = logp(policy, "1+2:3*=5:", "3") - logp(policy, "1+2:3*=0:", "3")
    assert found[0].item() == pytest.approx(wanted, abs=1e-5)


def test_a_short_placeholder_repeats_its_last_token_inside_the_frame():
    class Framed:
        def observation_ids(self, text, last):
            return (90, last, int(text), 91, 92)

    hidden = _hide(Framed(), (90, 3, 5, 6, 7, 8, 91, 92), 3, (1, 2, 4))
    assert hidden == (90, 3, 1, 2, 4, 4, 91, 92)
    assert _hide(Framed(), (5, 6, 7, 8, 9), 3, (1, 2, 4)) == (1, 2, 4, 4, 4)  # not framed so


def test_a_placeholder_needs_tokens(policy):
    batch = rollouts()
    batch = batch.set(logp_old_T=torch.zeros(batch.size("T")))
    with pytest.raises(UserError, match="placeholder has no tokens"):
        run(MeasureFeedbackGain(""), batch, services=services(policy))


def test_mean_gains_are_logged(policy):
    batch = rollouts().set(outcome_B=torch.tensor([1.0, 0.5, 0.25]))
    found = run(MeasureAnswerGain(), batch, services=services(policy))
    mean = float(found.value[[0, 1, 3]].mean())  # of turns that are not the last
    assert found.metrics == {"answer_gain/mean": pytest.approx(mean)}
    logp_old_T = policy.columns(batch, ("logp_T",), 1.0)["logp_T"]
    batch = batch.set(logp_old_T=logp_old_T)
    found = run(MeasureFeedbackGain("0("), batch, services=services(policy))
    mean = float(found.value[[0, 3]].mean())  # of turns whose feedback was hidden
    assert found.metrics == {"feedback_gain/mean": pytest.approx(mean)}
