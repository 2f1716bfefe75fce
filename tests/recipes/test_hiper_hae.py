import pytest
import torch
from builders import flat_batch, run
from ragged import ragged_batch

from strop import functional as F
from strop.method.part import Use, call, name_of
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.parts.advantage.credit.spread_over_spans import SpreadOverSpans
from strop.recipes.hiper_hae import hiper_hae
from strop.support.errors import UserError

# One episode of four turns in two segments; V_high is read where a segment begins.
EXAMPLE = {
    "trajectories": torch.zeros(4, dtype=torch.long), "turn_index": torch.arange(4),
    "done": torch.tensor([0, 0, 0, 1]), "switch": torch.tensor([1, 0, 1, 0]),
    "turn_rewards": torch.tensor([0.0, 0, 0, 1]).double(),
    "v_low": torch.tensor([0.3, 0.4, 0.5, 0.7]).double(),
    "v_high": torch.tensor([0.2, 9.0, 0.6, -9.0]).double(),
    "v_term": torch.tensor([0.2, 0.3, 0.5, 0.6]).double(),
    "action_valid": torch.ones(4), "subgoal_token": torch.tensor([3, 3, 5, 5]),
}  # fmt: skip
PLAIN = {"lam": 0.95, "normalize": False, "c_keep": 0.0, "c_inv": 0.0, "c_cons": 0.0}
# A turn of a switch token, a subgoal token and an action token.
SPANS = {"spans": torch.tensor([[1, 2, 4]] * 4), "mask": torch.ones(4, 3)}


def credits(params=None, **changes):
    """Advantages of switch, subgoal and action [4, 3]."""
    return F.advantages("hiper_hae", params={**PLAIN, **(params or {})},
                        **{**EXAMPLE, **SPANS, **changes})  # fmt: skip


def test_worked_example():
    found = credits()
    assert found[:, 2].tolist() == pytest.approx([0.29, 0.2, 0.485, 0.3])
    assert found[:, 1].tolist() == pytest.approx([0.78, 0, 0.4, 0])
    assert found[:, 0].tolist() == pytest.approx([0.4, 0.3, 0.5, 0.4])


def test_without_spans_a_turn_is_all_action():
    found = F.advantages("hiper_hae", params=PLAIN, **EXAMPLE)
    assert found.tolist() == pytest.approx([0.29, 0.2, 0.485, 0.3])


def test_order_comes_from_the_turn_index():
    order = torch.tensor([2, 0, 3, 1])
    moved = {name: column[order] for name, column in {**EXAMPLE, **SPANS}.items()}
    found = F.advantages("hiper_hae", params=PLAIN, **moved)
    torch.testing.assert_close(found, credits()[order])


def test_a_token_in_two_blocks_gets_both_advantages_and_outside_none():
    found = credits(spans=torch.tensor([[1, 5, 0]] * 4))
    assert found[0].tolist() == pytest.approx([0.4, 0.4 + 0.29, 0])


def test_an_episode_that_was_cut_goes_on_or_not():
    cut = torch.zeros(4)
    on = credits(done=cut)
    # last turn: r + V_low of itself; segment: V_high of its own beginning, for the switch too
    assert on[3, 2].item() == pytest.approx(1 + 0.7 - 0.7)
    assert on[2, 1].item() == pytest.approx(1 + 0.6 - 0.6)
    assert on[3, 0].item() == pytest.approx(1 + 0.6 - 0.6)
    off = credits({"bootstrap_truncated": False}, done=cut)
    torch.testing.assert_close(off, credits())


def test_rewards_are_shaped():
    # three of four turns keep, the first of them too (turn 0): c_keep / 4 each
    keeps = {"switch": torch.tensor([0, 0, 1, 0]), "turn_rewards": torch.zeros(4).double()}
    nothing = torch.zeros(4).double()
    given = {**keeps, "v_low": nothing, "v_high": nothing, "v_term": nothing}
    found = credits({"c_keep": -0.4, "lam": 0.0}, **given)
    assert found[:, 2].tolist() == pytest.approx([-0.1, -0.1, 0, -0.1])
    fixed = credits({"c_keep": -0.4, "keep_mode": "fixed", "lam": 0.0}, **given)
    assert fixed[:, 2].tolist() == pytest.approx([-0.4, -0.4, 0, -0.4])
    invalid = credits({"c_inv": 0.1, "lam": 0.0}, **given, action_valid=torch.tensor([1, 0, 1, 1]))
    assert invalid[:, 2].tolist() == pytest.approx([0, -0.1, 0, 0])
    # turn 1 keeps but says another subgoal; turn 3 has none; turn 2 switches, so it may
    goals = torch.tensor([3, 4, 5, 0])
    changed = credits({"c_cons": -0.3, "lam": 0.0}, **given, subgoal_token=goals)
    assert changed[:, 2].tolist() == pytest.approx([0, -0.3, 0, 0])
    for price, wanted in (("c_inv", "action_valid"), ("c_cons", "subgoal_token")):
        lacking = {name: column for name, column in EXAMPLE.items() if name != wanted}
        with pytest.raises(UserError, match=f"needs {wanted}"):
            F.advantages("hiper_hae", params={**PLAIN, price: 0.1}, **lacking)


def test_a_lone_turn_pays_nothing_for_keeping():
    one = {name: column[:1] for name, column in EXAMPLE.items()}
    one |= {"switch": torch.zeros(1), "done": torch.ones(1)}
    found = F.advantages("hiper_hae", params={**PLAIN, "c_keep": -0.4}, **one)
    assert found.tolist() == pytest.approx([-0.3])


def test_each_level_is_normalised_over_its_own_turns():
    raw, found = credits(), credits({"normalize": True})
    low = raw[:, 2]
    torch.testing.assert_close(found[:, 2], (low - low.mean()) / low.std(correction=0))
    assert found[:, 1].tolist() == pytest.approx([1, 0, -1, 0], abs=1e-6)  # 0.78 and 0.4
    assert abs(float(found[:, 0].mean())) < 1e-12


def test_tokens_of_any_block_learn():
    # actions 1 and 3: mean 2, deviation 1; one subgoal and one switch, which are their own means
    batch = flat_batch(
        (4, 2), span_T=[1, 2, 4, 0, 4, 0], switch_K=[False, False], advantage_K=[1.0, 3.0],
        segment_advantage_K=[5.0, 6.0], switch_advantage_K=[7.0, 8.0],
    )  # fmt: skip
    advantage_T, learning_T = run(SpreadOverSpans(eps=0.5), batch).value
    assert advantage_T.tolist() == pytest.approx([0, 0, -1 / 1.5, 0, 1 / 1.5, 0])
    assert learning_T.tolist() == [True, True, True, False, True, False]


def test_always_keeping_is_gae_over_turns():
    batch = ragged_batch(4, max_turns=5)
    ended_K = torch.cat([batch["rollout_K"].diff() != 0, torch.ones(1, dtype=torch.bool)])
    keeps = batch.set(switch_K=torch.zeros_like(batch["switch_K"]), done_K=ended_K,
                      scored_B=torch.ones_like(batch["scored_B"]))  # fmt: skip
    low = hiper_hae(gamma=0.9, lam=0.7).advantage[1]
    found = call(Use(low.part), keeps.set(entry_value_K=keeps["value_K"])).value
    tokens = {"value_T": keeps["value_K"], "reward_T": keeps["reward_K"],
              "mask_T": torch.ones_like(ended_K), "rollout_T": keeps["rollout_K"]}  # fmt: skip
    gae = EstimateGeneralisedAdvantage(0.9, 0.7)
    expected = gae(**tokens, scored_B=keeps["scored_B"]).value
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


def test_always_switching_is_gae_over_turns_for_subgoals():
    batch = ragged_batch(5, max_turns=5)
    batch = batch.set(switch_K=torch.ones_like(batch["switch_K"]),
                      scored_B=torch.ones_like(batch["scored_B"]))  # fmt: skip
    algorithm = hiper_hae(gamma=0.9, lam=0.3, lam_seg=0.8)
    high = call(Use(algorithm.advantage[2].part), batch).value
    turns = hiper_hae(gamma=0.9, lam=0.8).advantage[1].part
    plain = batch.set(switch_K=torch.zeros_like(batch["switch_K"]), entry_value_K=batch["value_K"])
    expected = call(Use(turns), plain).value
    torch.testing.assert_close(high[0], expected[0])
    torch.testing.assert_close(high[1], expected[1])
    # segments of one turn: actions look one step ahead, to what a new segment is worth
    low = call(Use(algorithm.advantage[1].part), batch).value[0]
    other = call(Use(hiper_hae(gamma=0.9, lam=1.0).advantage[1].part), batch).value[0]
    torch.testing.assert_close(low, other)


def slow(batch, gamma, lam, lam_seg, bootstrap):
    """Advantages of the three levels by loops over turns, as the card defines them."""
    num = batch.size("K")
    low, high, term = [0.0] * num, [0.0] * num, [0.0] * num
    v_low, v_high, v_term, r = (batch[n].tolist() for n in (
        "value_low_K", "value_K", "value_term_K", "reward_K"))  # fmt: skip
    done, switch = batch["done_K"].tolist(), batch["switch_K"].tolist()
    for i in range(batch.size("B")):
        turns = (batch["rollout_K"] == i).nonzero().squeeze(1).tolist()
        starts = [p for p, k in enumerate(turns) if p == 0 or switch[k]]
        after_high = 0.0
        for s in reversed(range(len(starts))):
            begin = starts[s]
            end = starts[s + 1] if s + 1 < len(starts) else len(turns)
            first, last = turns[begin], turns[end - 1]
            follows = turns[end] if end < len(turns) else None
            boot_low = boot_high = 0.0
            if not done[last] and follows is not None:
                boot_low = boot_high = v_high[follows]
            elif not done[last] and bootstrap:
                boot_low, boot_high = v_low[last], v_high[first]
            credit, left = 0.0, boot_high
            for p in reversed(range(begin, end)):
                k = turns[p]
                ahead = boot_low if p == end - 1 else (0.0 if done[k] else v_low[turns[p + 1]])
                goes_on = 0.0 if done[k] else 1.0
                credit = r[k] + gamma * ahead - v_low[k] + gamma * lam * goes_on * credit
                low[k] = credit
                left = r[k] + gamma * left
                term[k] = left - v_term[k]
            d = end - begin
            total = sum(gamma**j * r[turns[begin + j]] for j in range(d))
            goes_on = 0.0 if done[last] else 1.0
            delta = total + gamma**d * boot_high - v_high[first]
            after_high = delta + gamma**d * lam_seg * goes_on * after_high
            high[first] = after_high
    return low, high, term


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bootstrap", [True, False])
def test_matches_slow_loops(seed, bootstrap):
    batch = ragged_batch(seed, max_turns=6)
    rng = torch.Generator().manual_seed(seed)
    ends_K = torch.cat([batch["rollout_K"].diff() != 0, torch.ones(1, dtype=torch.bool)])
    values = {n: torch.randn(batch.size("K"), generator=rng).double()
              for n in ("value_low_K", "value_term_K")}  # fmt: skip
    batch = batch.set(**values, done_K=ends_K & (torch.rand(ends_K.shape, generator=rng) < 0.5),
                      scored_B=torch.ones_like(batch["scored_B"]))  # fmt: skip
    algorithm = hiper_hae(gamma=0.9, lam=0.7, lam_seg=0.6, bootstrap_truncated=bootstrap)
    plain = batch.set(shaped_reward_K=batch["reward_K"])
    found = [call(use, plain).value for use in algorithm.advantage[1:3]]
    low, high, term = slow(batch, 0.9, 0.7, 0.6, bootstrap)
    assert found[0][0].tolist() == pytest.approx(low)
    assert found[1][0].tolist() == pytest.approx(high)
    assert found[1][2].tolist() == pytest.approx(term)


def test_heads_learn_at_their_own_tokens():
    batch = ragged_batch(2)
    algorithm = hiper_hae()
    for use in algorithm.probes[1:]:
        heads = {"value_low_T": batch["value_T"] * 2, "value_term_T": batch["value_T"] * 3}
        value_K, at_T = call(use, batch.set(**heads)).value
        turns = batch["turn_T"][at_T]
        assert turns.unique().shape == turns.shape  # one token of a turn
        assert batch["mask_T"][at_T].all()
        assert value_K.shape == (batch.size("K"),)
    on = {term.name: term.on.columns for term in algorithm.terms if term.learner == "critic"}
    assert on == {f"value_{n}": (("learning_T", f"at_{n}_T"),) for n in ("high", "low", "term")}
    assert algorithm.value_columns() == ("value_T", "value_low_T", "value_term_T")


def test_the_critic_learns_what_was_paid_where_the_policy_takes_a_cut_episode_as_going_on():
    batch = ragged_batch(3, max_turns=5)
    values = {"value_low_K": batch["value_K"] + 1, "value_term_K": batch["value_K"] - 1}
    cut = batch.set(**values, shaped_reward_K=batch["reward_K"],
                    done_K=torch.zeros_like(batch["done_K"]))  # fmt: skip
    written = {}
    for on in (True, False):
        found = cut
        for use in hiper_hae(gamma=0.9, lam=0.7, bootstrap_truncated=on).advantage:
            if name_of(use.part).startswith("estimate_"):
                names = [dict(use.columns).get(name, name) for name in use.part.writes]
                found = found.set(**dict(zip(names, call(use, found).value, strict=True)))
        written[on] = found
    for name in ("return_K", "segment_return_K", "switch_return_K"):
        assert torch.equal(written[True][name], written[False][name])
    for name in ("advantage_K", "segment_advantage_K", "switch_advantage_K"):
        assert not torch.equal(written[True][name], written[False][name])
