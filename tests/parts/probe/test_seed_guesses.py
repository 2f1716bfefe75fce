import torch
from builders import ragged_batch, run

from strop.parts.probe.seed_guesses import SeedGuesses


def test_every_token_has_a_seed_of_its_own_from_the_generator_alone():
    mask_T = ragged_batch(1, groups=(20, 20))["mask_T"]
    seeds_T = run(SeedGuesses(), ragged_batch(1, groups=(20, 20)),
                  rng=torch.Generator().manual_seed(5)).value  # fmt: skip
    expected = torch.randint(2**62, mask_T.shape, generator=torch.Generator().manual_seed(5))
    assert seeds_T.equal(expected)
    assert seeds_T.unique().numel() == mask_T.shape[0] > 100
    # of 62 bits, in all of which some token has a 1 and some a 0
    assert ((seeds_T >= 0) & (seeds_T < 2**62)).all()
    bits = [(seeds_T >> bit & 1).double().mean().item() for bit in range(62)]
    assert 0.2 < min(bits) < max(bits) < 0.8
