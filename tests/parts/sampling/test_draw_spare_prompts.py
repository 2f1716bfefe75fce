import torch

from strop.method.part import Draw
from strop.parts.sampling.draw_spare_prompts import DrawSparePrompts


def test_the_first_step_alone_draws_spare_prompts():
    part, pool = DrawSparePrompts(1.5), tuple(range(10))
    rng = torch.Generator().manual_seed(0)
    own = Draw(2, 4, why="next", probability=0.5)
    error = part((own, Draw(5, 4)), pool, part.init(), rng)
    assert [(d.why, d.probability) for d in error.value] == [("next", 0.5)] + [("", None)] * 4
    assert [d.columns["spare_B"] for d in error.value] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert len({d.uid for d in error.value}) == 5
    assert {d.num_rollouts for d in error.value} == {4}
    again = part((Draw(1, 4),), pool, error.state, rng)
    assert again.value == (Draw(1, 4, {"spare_B": 0.0}),)
    assert len(DrawSparePrompts(7)((Draw(0, 2),), (0, 1, 2), part.init(), rng).value) == 8
    refill = part((Draw(1, 4),), pool, error.state, rng, num_wanted=1)
    assert len(refill.value) == 1
