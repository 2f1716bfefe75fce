"""Calls of one rollout become contexts, joined as in TRL where nothing would be lost."""

import itertools
import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.support.errors import UserError
from strop.traces.joining import Context, Drift, common_prefix, drift_metrics, join
from strop.traces.records import Rollout, TurnRecord, record_of

with (
    warnings.catch_warnings(),
    mock.patch("trl.import_utils.is_vllm_available", return_value=False),
):
    warnings.simplefilter("ignore")  # that it is experimental; and `vllm` are tests of this folder
    from trl.experimental.async_grpo.async_rollout_worker import DriftKind, _SampleBuilder
    from trl.experimental.async_grpo.async_rollout_worker import TurnRecord as TheirRecord


def turn(prompt: list[int], output: list[int], **others: object) -> TurnRecord:
    logps = tuple(-0.5 for _ in output)
    return TurnRecord(tuple(prompt), tuple(output), logps, **others)  # type: ignore[arg-type]


def test_a_conversation_is_one_context() -> None:
    joined = join([turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6]), turn([1, 2, 3, 4, 5, 6], [7])])
    assert [context.tokens for context in joined.contexts] == [[1, 2, 3, 4, 5, 6, 7]]
    assert [(piece.given, piece.ids, piece.opens) for piece in joined.pieces] == [
        ((1, 2), (3, 4), True), ((5,), (6,), False), ((), (7,), False),
    ]  # fmt: skip
    assert [each.kind for each in joined.transitions] == [Drift.CLEAN] * 2


def test_a_tail_that_a_template_writes_anew_is_text_that_was_given() -> None:
    joined = join([turn([1, 2], [3, 4, 5]), turn([1, 2, 3, 8, 9, 10], [11])])
    assert [context.tokens for context in joined.contexts] == [[1, 2, 3, 8, 9, 10, 11]]
    assert [(piece.given, piece.ids) for piece in joined.pieces] == [
        ((1, 2), (3,)), ((8, 9, 10), (11,)),
    ]  # fmt: skip
    assert joined.transitions == [(Drift.REALIGN, 2)]


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ([1, 9, 3, 4, 5], 3),  # the history before the last answer is another
        ([1, 2, 7, 8], 2),  # nothing of the answer stays, as where thinking is dropped
        ([1, 2], 2),  # the same prompt again
        ([1, 2, 3], 1),  # a prefix of the answer
    ],
)
def test_what_would_lose_an_answer_forks(prompt: list[int], tokens: int) -> None:
    joined = join([turn([1, 2], [3, 4]), turn(prompt, [6])])
    assert [context.tokens for context in joined.contexts] == [[1, 2, 3, 4], [*prompt, 6]]
    assert joined.transitions == [(Drift.FORK, tokens)]


def test_drift_as_large_as_the_threshold_forks() -> None:
    records = [turn([1], [2, 3, 4]), turn([1, 2, 9], [5])]
    assert [len(join(records, threshold).contexts) for threshold in (2, 3)] == [2, 1]


def test_two_agents_may_alternate() -> None:
    main = [turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 3, 4, 5], [6])]
    helper = [turn([7], [8]), turn([7, 8, 9], [10])]
    joined = join([main[0], helper[0], main[1], helper[1], main[2]])
    assert [context.tokens for context in joined.contexts] == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10]]
    assert drift_metrics([joined]) == {
        "turns/contexts": 2, "turns/clean": 0.75, "turns/realign": 0, "turns/fork": 0.25,
        "turns/drift_tokens": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("continued", [0, 1])
def test_of_two_answers_that_begin_alike_the_one_that_a_prompt_repeats_is_continued(
    continued: int,
) -> None:
    answers = [[3, 4, 5, 6], [3, 7]]
    prompt = [1, 2, *answers[continued][:-1], 8]
    joined = join([*(turn([1, 2], each) for each in answers), turn(prompt, [9])])
    assert joined.transitions[-1] == (Drift.REALIGN, 1)
    assert joined.contexts[continued].tokens == [*prompt, 9]
    assert joined.contexts[1 - continued].tokens == [1, 2, *answers[1 - continued]]


def test_a_call_that_forks_is_compared_with_the_newest_context_alone() -> None:
    """The thoughts of 40 answers are left out of what follows, so that each call forks."""
    history, records = [1] * 8, list[TurnRecord]()
    for number in range(40):
        records.append(turn(history, [2, 2, 3 + number]))
        history = [*history, 3 + number, 9]
    with mock.patch("strop.traces.joining.common_prefix", wraps=common_prefix) as compared:
        joined = join(records)
    assert len(joined.contexts) == 40
    assert compared.call_count == 40 + 39  # where a context begins, and with the one before


ids = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@given(st.lists(st.tuples(ids, ids), min_size=2, max_size=8))
def test_no_context_is_passed_over_that_a_prompt_continues(
    calls: list[tuple[list[int], list[int]]],
) -> None:
    records = [turn(*call) for call in calls]
    with mock.patch.object(Context, "may_continue", return_value=True):
        everywhere = join(records, 2)
    joined = join(records, 2)
    assert (joined.contexts, joined.transitions) == (everywhere.contexts, everywhere.transitions)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=6), st.integers(1, 4))
def test_no_token_is_lost_or_learned_from_twice(
    calls: list[tuple[list[int], list[int]]], threshold: int
) -> None:
    joined = join([turn(*call) for call in calls], threshold)
    assert len(joined.pieces) == len(calls)
    assert [c.tokens for c in joined.contexts] == [
        [*itertools.chain.from_iterable((*piece.given, *piece.ids) for piece in context.pieces)]
        for context in joined.contexts
    ]
    # only realigned tails are no longer learned from
    cut = sum(each.tokens for each in joined.transitions if each.kind is Drift.REALIGN)
    assert sum(piece.kept for piece in joined.pieces) == sum(len(out) for _, out in calls) - cut
    assert all(piece.kept for piece in joined.pieces)


@given(ids, ids, ids, ids, st.integers(1, 4))
def test_drift_is_what_trl_finds(
    prompt: list[int], output: list[int], more: list[int], second: list[int], threshold: int
) -> None:
    theirs = _SampleBuilder(threshold)
    theirs.append_turn(TheirRecord(prompt, output, [-1.0] * len(output)), DriftKind.CLEAN)
    kind, tokens = theirs.classify_token_drift(TheirRecord(more, second, [-1.0] * len(second)))
    context = Context()
    context.add(turn(prompt, output))
    ours = context.drift(more, threshold)
    held = [*prompt, *output]
    keeps_some = len(prompt) < common_prefix(held, more) < len(more)
    if kind.value == "realign" and not keeps_some:
        assert ours == (Drift.FORK, tokens)
    else:
        assert (ours[0].value, ours[1]) == (kind.value, tokens)


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_the_common_prefix(one: list[int], other: list[int]) -> None:
    equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    assert common_prefix(one, other) == len(list(equal))


def test_records_of_others_are_read() -> None:
    own = turn([1], [2, 3], output_mask=(True, False))
    theirs = TheirRecord([1], [2, 3], [-0.5, -0.5], [1, 0])
    told = {"prompt_ids": [1], "output_ids": [2, 3], "output_log_probs": [-0.5, -0.5],
            "output_mask": [1, 0]}  # fmt: skip
    assert record_of(theirs) == record_of(told) == record_of(own) == own
    assert Rollout.from_turns([theirs, told], reward=1).turns == (own, own)


def test_rounding_may_put_a_certain_token_above_0() -> None:
    assert record_of({"prompt_ids": [1], "output_ids": [2], "output_log_probs": [1e-6]})


def test_events_are_cut_where_the_weights_changed() -> None:
    record = turn([1], [2, 3, 4], versions=(5, 5, 6))
    assert [(event.ids, event.version) for event in record.events()] == [((2, 3), 5), ((4,), 6)]
    assert [event.ids for event in record.events(1)] == [(2,)]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"prompt_ids": [1]}, "lacks output_ids"),
        ({"prompt_ids": [], "output_ids": [1]}, "has no prompt_ids"),
        ({"prompt_ids": [1], "output_ids": []}, "has no output_ids"),
        ({"prompt_ids": [1], "output_ids": [2], "log_probs": [0]}, "the field 'log_probs'"),
        ({"prompt_ids": [1], "output_ids": [2, 3], "output_log_probs": [-1.0]}, "has 1 output_log"),
        ({"prompt_ids": [1], "output_ids": [-2]}, "has -2 in output_ids"),
        ({"prompt_ids": ["a"], "output_ids": [2]}, "has 'a' in prompt_ids"),
        ({"prompt_ids": np.array([1, 2]), "output_ids": [2]}, "a ndarray as prompt_ids: give a li"),
        ({"prompt_ids": [1], "output_ids": [2], "output_log_probs": [float("-inf")]}, "has -inf"),
        (
            {"prompt_ids": [1], "output_ids": [2], "output_log_probs": [0.7]},
            "0.7 in output_log_prob",
        ),
        (
            {"prompt_ids": [1], "output_ids": [2], "model_log_probs": [0.7]},
            "0.7 in model_log_probs",
        ),
    ],
)
def test_what_is_no_record_is_refused(told: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        record_of(told)


def test_what_is_no_rollout_is_refused() -> None:
    with pytest.raises(UserError, match="a rollout has no turns"):
        Rollout.from_turns([])
    with pytest.raises(UserError, match="has the reward nan"):
        Rollout.from_turns([turn([1], [2])], reward=float("nan"))
