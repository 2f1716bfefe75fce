import math

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeServices, FakeTexts, rolled_out

from strop.method import part as parts
from strop.method.part import Draw, Use
from strop.parts.rollout import substitutes
from strop.parts.rollout.sample_at_entropy_temperature import (
    SampleAtEntropyTemperature,
    WarmByEntropy,
)
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError

ENTROPY = torch.tensor([0.01, 0.05, 0.1, 0.5, 2.0]).double()
ALL = torch.ones(5, dtype=torch.bool)
# Token 0 ends; after 1 the policy is sure, after 2 it is not.
CHAIN = by_last_token({0: (1, 0, 0), 1: (0.02, 0.02, 0.96), 2: (0.2, 0.4, 0.4)})


SERVICES = FakeServices(FakeTexts({1: (1,), 2: (2,)}), sampling=FakeSampling(answer_tokens=6))


def batch_of(part, state):
    rng = torch.Generator().manual_seed(3)
    draws = (Draw(1, 40), Draw(2, 40))
    return rolled_out(part, draws, TableEngine(CHAIN), SERVICES, rng, state).batch


def temperatures(rule, entropies):
    """The factor that two-token logits of these entropies are divided by."""
    found = []
    for wanted in entropies:
        low, high = 0.5, 1 - 1e-12  # of the likelier token: entropy falls with it
        for _ in range(100):
            p = (low + high) / 2
            entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
            low, high = (p, high) if entropy > wanted else (low, p)
        logits = torch.tensor([[p, 1 - p]]).double().log()
        found.append(float((logits / rule(logits))[0, 1]))
    return found


def test_worked_example():
    part = SampleAtEntropyTemperature()
    state = part.update(ENTROPY, ALL, {})
    rule = part.warming(state)
    found = temperatures(rule, ENTROPY[:4].tolist())
    assert found == pytest.approx([0.8255, 0.8973, 0.9282, 1.0], abs=5e-5)
    many = torch.zeros(1, 9).double()  # entropy ln 9: l - Q = ln(ln 9 / .5), over rms 2.2413
    expected = 1 + 0.1 * math.log(math.log(9) / 0.5) / 2.24133552
    assert rule(many + 1.0)[0, 0] == pytest.approx(1 / expected)
    code = SampleAtEntropyTemperature(tau=0.05, source_form="code").warming(state)
    found = temperatures(code, ENTROPY[:4].tolist())
    assert found == pytest.approx([0.95, 1 - 0.05 * 0.5886, 1 - 0.05 * 0.4114, 1.0], abs=5e-5)
    assert code(torch.zeros(1, 1000).double() + 1.0)[0, 0] == pytest.approx(1 / 1.05)  # held at 1


def test_what_it_asks_of_an_engine():
    assert SampleAtEntropyTemperature().needs == {"rules"}
    assert SampleAtEntropyTemperature(tau=0.0).needs == set()
    assert SampleAtEntropyTemperature(tau=0.0, top_k=2).needs == {"rules"}


def test_first_step_and_tau_0_are_plain():
    plain = batch_of(SampleIndependently(top_p=0.97), None)
    state = {"middle": -1.0, "rms": 1.0, "most": 1.0, "least": 1.0}
    for part, known in (
        (SampleAtEntropyTemperature(top_p=0.97), {}),
        (SampleAtEntropyTemperature(top_p=0.97, tau=0.0), state),
        (substitutes.plain(SampleAtEntropyTemperature(top_p=0.97)), None),
    ):
        batch = batch_of(part, known)
        assert all(batch[name].equal(plain[name]) for name in plain.columns)


def test_sure_tokens_are_drawn_surer_and_the_state_follows_the_batch():
    part = SampleAtEntropyTemperature(tau=0.5)
    plain = batch_of(SampleIndependently(), None)
    state = parts.update(Use(part), plain, {})
    assert state["middle"] == pytest.approx(math.log(1.0549), abs=1e-4)  # of (.2, .4, .4)
    warmed = batch_of(part, state)
    sure_T = warmed["mask_T"] & (warmed["entropy_behavior_T"] < 0.5)
    likely_T = sure_T & (warmed["id_T"] == 2)
    assert (warmed["logp_behavior_T"][likely_T] > math.log(0.96)).all()
    assert torch.allclose(warmed["logp_sampler_T"][likely_T], torch.tensor(0.96).log())
    assert part.init() == {}


def test_steps_without_a_spread_are_followed_by_plain_ones():
    part = SampleAtEntropyTemperature()
    assert part.update(ENTROPY, ~ALL, {"middle": 1.0}) == {}
    assert part.update(torch.full((5,), 0.3).double(), ALL, {}) == {}
    void = torch.where(torch.arange(5) == 4, torch.nan, ENTROPY)
    assert part.update(void, ALL, {})["most"] == pytest.approx(math.log(0.5 / 0.1))
    # never colder than a twentieth
    cold = WarmByEntropy(10.0, 0.0, 1.0, 1.0)
    assert cold(torch.tensor([[0.0, 30.0]]))[0, 1] == pytest.approx(600.0)
    for field, value in (("tau", -1.0), ("quantile", 2.0), ("source_form", "both")):
        with pytest.raises(UserError, match=field):
            SampleAtEntropyTemperature(**{field: value})
