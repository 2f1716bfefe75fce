"""Similarity, the three matchings, and rewards of turns through a small world."""

import itertools

import pytest
import torch
from builders import run
from fakes.services import FakeEpisodes, FakeServices, FakeTexts
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.batch.batch import Batch
from strop.data.tool_calls import Call
from strop.parts.reward._match_calls import assign_best, assign_greedily, similarity, transport
from strop.parts.reward.match_reference_calls import MatchReferenceCalls
from strop.support.errors import UserError

SEARCH = Call("search", {"q": "a", "k": 5})


def test_worked_similarity():
    assert similarity(Call("search", {"q": "a", "n": 3}), SEARCH) == pytest.approx(0.5833, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (SEARCH, 1.0),
        (Call("SEARCH", {"q": "a", "k": 5}), 1.0),
        (Call("find", {"q": "a", "k": 5}), 0.0),
        (Call("", {}), 0.0),
        (Call("search", {}), 1 / 4),
        (Call("search", {"q": "b", "k": 6}), 2 / 4),
    ],
)
def test_similarity(call, wanted):
    assert similarity(call, SEARCH) == wanted


def test_tools_without_arguments_are_alike():
    assert similarity(Call("now", {}), Call("now", {})) == 1.0


def test_greedy_is_not_always_best():
    scores = [[0.9, 0.8], [0.8, 0.0]]
    assert assign_greedily(scores, -0.5) == [0.9, -0.5]
    assert assign_best(scores, -0.5) == [0.8, 0.8]


SCORES = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0]), min_size=width, max_size=width),
        min_size=1, max_size=4,
    )
)  # fmt: skip


@settings(max_examples=60)
@given(scores=SCORES)
def test_the_best_assignment_is_that_of_all_permutations(scores):
    num = len(scores[0])
    places = [*range(num), *[-1] * len(scores)]
    sums = [
        sum(row[g] for row, g in zip(scores, chosen, strict=True) if g >= 0)
        for chosen in set(itertools.permutations(places, len(scores)))
    ]
    assert sum(assign_best(scores, 0.0)) == pytest.approx(max(sums))
    assert sum(assign_greedily(scores, 0.0)) <= max(sums) + 1e-12


@settings(max_examples=20)
@given(scores=SCORES)
def test_transport_gives_each_call_no_more_than_its_mass(scores):
    shares = transport(scores, 0.1)
    limit = 1 / len(scores)
    assert all(-1e-12 <= share <= limit + 1e-6 for share in shares)


def test_transport_between_one_call_and_its_reference_and_between_equals():
    assert transport([[0.7]], 0.1) == pytest.approx([0.7])
    assert transport([[1.0, 0.0], [0.0, 1.0]], 0.1) == pytest.approx([0.5, 0.5], abs=1e-4)
    assert transport([[0.4, 0.4], [0.4, 0.4]], 0.1) == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(("matching", "earned"),
                         [("exact", [11 / 12, 7 / 15]), ("greedy", [1.0, 0.25])])  # fmt: skip
def test_the_part_assigns_as_it_is_told(matching, earned):
    # f(a, b, c) and f(c) against references f(a, b, c) and f(a, b), equal values throughout:
    # (1 + 1 + 3) / 5 and (1 + 2/3 + 2) / 4; (1 + 1/3 + 1) / 5 and (1 + 0 + 0) / 4
    three, two, one = (Call("f", dict.fromkeys(names, 1)) for names in ("abc", "ab", "c"))
    found = MatchReferenceCalls(matching)._scores([three, one], [three, two])
    assert found == pytest.approx(earned)


def world(columns):
    """One token a turn, whose text is `texts[id]`."""
    texts = ["", *(f'<tool_call>{{"name": "{n}"}}</tool_call>' for n in "fgh")]
    texts.append(texts[1] + texts[3])
    return FakeServices(
        FakeTexts(rows=dict(enumerate(columns))), episodes=FakeEpisodes(texts=texts)
    )


def paid(part, rows, reward_K, reward_B, services):
    rows = rows.set(reward_K=reward_K, reward_B=reward_B)
    return run(part, rows, services=services).value


def batch(*rollouts):
    """Each rollout is its turns' tokens, after an observation of one token each."""
    turns = [token for rollout in rollouts for token in rollout]
    num = len(turns)
    lengths = torch.tensor([len(rollout) for rollout in rollouts])
    return Batch(
        {
            "turn_T": torch.arange(num).repeat_interleave(2),
            "id_T": torch.tensor([[9, token] for token in turns]).flatten(),
            "mask_T": torch.tensor([False, True] * num),
            "rollout_K": torch.arange(len(rollouts)).repeat_interleave(lengths),
            "group_B": torch.arange(len(rollouts)),
            "uid_P": torch.arange(len(rollouts)), "draw_P": torch.zeros(len(rollouts)),
        }
    )  # fmt: skip


def test_turns_are_paid_for_their_calls_and_others_keep_their_reward():
    references = [{"name": "f"}, {"name": "g", "arguments": {}}]
    rows = batch([1, 4, 0], [3, 2], [1])
    services = world([{"reference_calls": references}] * 2 + [{"reference_calls": None}])
    reward_K = torch.tensor([0.0, 0.5, 1.0, 0.25, 0.0, 0.75])
    reward_B = torch.tensor([1.5, 0.25, 0.75]) + 2
    part = MatchReferenceCalls(unmatched=-0.5)
    paid_K, paid_B = paid(part, rows, reward_K, reward_B, services)
    # f is matched in the first turn; the second's f and h are not; the third makes no call
    assert paid_K.tolist() == [1.0, -0.5, 1.0, -0.5, 1.0, 0.75]
    assert paid_B.tolist() == [3.5, 2.5, 2.75]


def test_a_row_without_the_column_and_too_many_references():
    rows, zeros = batch([1]), torch.zeros(1)
    with pytest.raises(UserError, match=r"reads the column reference_calls.*there are answer"):
        paid(MatchReferenceCalls(), rows, zeros, zeros, world([{"answer": "1"}]))
    many = world([{"reference_calls": [{"name": "f"}] * 11}])
    with pytest.raises(UserError, match="matching=greedy"):
        paid(MatchReferenceCalls(), rows, zeros, zeros, many)
    assert paid(MatchReferenceCalls("greedy"), rows, zeros, zeros, many)[0].tolist() == [1.0]
    with pytest.raises(UserError, match="needs a name"):
        paid(MatchReferenceCalls(), rows, zeros, zeros, world([{"reference_calls": ["f"]}]))


def test_how_many_calls_are_judged_and_their_mean_score_are_logged():
    references = [{"name": "f"}, {"name": "g", "arguments": {}}]
    rows = batch([1, 4, 0], [3, 2], [1])
    services = world([{"reference_calls": references}] * 2 + [{"reference_calls": None}])
    rows = rows.set(reward_K=torch.zeros(6), reward_B=torch.zeros(3))
    told = run(MatchReferenceCalls(unmatched=-0.5), rows, services=services).metrics
    # f, f and h; h and g: one f and the g are matched
    assert told == {"calls/judged": 5, "calls/score_mean": pytest.approx((2 - 3 * 0.5) / 5)}
