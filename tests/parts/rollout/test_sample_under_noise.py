import torch
from fakes.engine import TableEngine
from fakes.services import FakeSampling, FakeServices, FakeTexts, rolled_out

from strop.method.part import Draw
from strop.parts.rollout import substitutes
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.rollout.sample_under_noise import SampleUnderNoise

PROMPT = (9, *[3, 4] * 50)  # 9 is special


SERVICES = FakeServices(
    FakeTexts({1: PROMPT}, dict(enumerate("0123456789")), special_ids=(0, 9)),
    sampling=FakeSampling(answer_tokens=3),
)


def sampled(part, num=8):
    """The batch, and the prompts that the engine saw."""
    seen = {}

    def probabilities(tokens):
        seen[tokens[: len(PROMPT)]] = None
        likelier = 1 + sum(t == 3 for t in tokens[:101]) % 8
        return [0.1 + 0.2 * (i == likelier) - 0.2 * (i == 9) * 0.5 for i in range(10)]

    rng = torch.Generator().manual_seed(1)
    batch, state, *_ = rolled_out(
        part, (Draw(1, num), Draw(1, 1)), TableEngine(probabilities), SERVICES, rng
    )
    assert state is None
    return batch, list(seen)


def test_answers_see_a_noisy_prompt_and_the_batch_holds_the_clean_one():
    batch, prompts = sampled(SampleUnderNoise())
    expected = torch.tensor([0.0, 0.3, 0.6, 0.9] * 2 + [0.0])
    assert torch.equal(batch["noise_level_B"], expected)
    given_T = ~batch["mask_T"]
    assert batch["id_T"][given_T].reshape(-1, len(PROMPT)).tolist() == [list(PROMPT)] * 9
    shares = sorted(sum(a != b for a, b in zip(p, PROMPT, strict=True)) / 100 for p in prompts)
    # one clean prompt; a replacement is the same token in one case of eight
    assert shares[0] == 0
    for share, level in zip(shares[1:], [0.3, 0.3, 0.6, 0.6, 0.9, 0.9], strict=True):
        assert abs(share - level * 7 / 8) < 0.15
    assert all(prompt[0] == 9 and not {0, 9} & set(prompt[1:]) for prompt in prompts)


def test_what_an_engine_said_of_another_prompt_is_void():
    batch, _ = sampled(SampleUnderNoise())
    noisy_T = (batch["noise_level_B"] > 0)[batch["rollout_T"]] & batch["mask_T"]
    for name in ("logp_behavior_T", "logp_sampler_T", "entropy_behavior_T"):
        assert batch[name].isnan().equal(noisy_T)


def test_without_noise_it_is_plain_sampling():
    plain, _ = sampled(SampleIndependently(top_k=5))
    for part in (SampleUnderNoise(top_k=5, levels=()), SampleUnderNoise(top_k=5, scale=0.0)):
        batch, prompts = sampled(part)
        assert prompts == [PROMPT]
        assert all(batch[name].equal(plain[name]) for name in plain.columns)
        assert substitutes.plain(part) == SampleIndependently(top_k=5)
