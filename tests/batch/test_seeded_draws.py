import math

import torch

from strop.batch.draws import uniforms


def test_draws_are_those_of_splitmix64():
    # the published first numbers of the generator seeded with 1234567
    numbers = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    wanted = [(number >> 11) * 2.0**-53 for number in numbers]
    seed_N = torch.tensor([1234567])
    assert uniforms(seed_N, 3).tolist() == [wanted]
    assert [uniforms(seed_N, 1, n).tolist() for n in range(3)] == [[[each]] for each in wanted]
    assert uniforms(seed_N, 1, 2**64 + 2).tolist() == [[wanted[2]]]  # the count wraps around


def test_the_draws_are_uniform():
    draws = uniforms(torch.arange(100_000), 2, skipped=7)
    for column in draws.T:
        counts = torch.histc(column, 20, 0, 1)
        assert float((counts - 5000).abs().max()) < 5 * math.sqrt(5000)
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    assert abs(float(torch.corrcoef(draws.T)[0, 1])) < 0.02
    along = uniforms(torch.tensor([5]), 20_000)[0]
    assert abs(float(torch.corrcoef(torch.stack([along[1:], along[:-1]]))[0, 1])) < 0.02
