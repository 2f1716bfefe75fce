import torch

from strop.parts.curation.drop_uniform_starts import DropUniformStarts

# Groups of 2, 2, 1 and 2 rollouts; two turns each, the first one's return is what counts.
GROUPS = torch.tensor([0, 0, 1, 1, 2, 3, 3])
ROLLOUTS = torch.arange(7).repeat_interleave(2)
STARTS = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.2, 1.0, 1.0])
RETURNS = torch.stack([STARTS, torch.arange(7.0)], dim=1).flatten()
SCORED = torch.ones(7, dtype=torch.bool)


def curate(part, state=None, scored=SCORED):
    return part(RETURNS, ROLLOUTS, GROUPS, scored, state or part.init(), num_groups=4)


def test_keeps_groups_whose_first_returns_spread_enough_and_single_rollouts():
    # deviations 0.5, 0.25, none, 0
    kept = curate(DropUniformStarts(0.3, max_rounds=1)).value.keep_B
    assert kept.tolist() == [True, True, False, False, True, False, False]
    kept = curate(DropUniformStarts(0.2, max_rounds=1)).value.keep_B
    assert kept.tolist() == [True] * 5 + [False] * 2
    assert not curate(DropUniformStarts(0.25, max_rounds=1)).value.keep_B[2:4].any()


def test_the_last_turn_may_decide():
    last = RETURNS.reshape(7, 2).clone()
    last[:, 1] = torch.tensor([1.0, 1, 0.5, 0.5009, 0, 0, 0.003])
    part = DropUniformStarts(1e-3, max_rounds=1, last=True)
    kept = part(last.flatten(), ROLLOUTS, GROUPS, SCORED, part.init(), num_groups=4).value.keep_B
    assert kept.tolist() == [False] * 4 + [True] * 3  # deviations 0, 0.00045, none, 0.0015


def test_asks_until_there_are_enough_and_then_cuts():
    asked = curate(DropUniformStarts(0.3))
    assert asked.value.ask == 2
    assert asked.value.keep_B.all()
    assert asked.state == {"rounds": 1, "target": 4}
    cut = curate(DropUniformStarts(0.3, num_prompts=1))
    assert cut.value.ask == ()
    assert cut.value.keep_B.tolist() == [True, True] + [False] * 5
    assert cut.state == {"rounds": 0, "target": 0}


def test_unscored_rollouts_do_not_spread():
    scored = SCORED.clone()
    scored[1] = False
    kept = curate(DropUniformStarts(0.6, max_rounds=1), scored=scored).value.keep_B
    assert kept.tolist() == [True, True, False, False, True, False, False]
    nobody = curate(DropUniformStarts(max_rounds=1), scored=~SCORED).value.keep_B
    assert not nobody.any()
