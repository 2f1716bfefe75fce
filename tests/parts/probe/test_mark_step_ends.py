import torch
from builders import flat_batch, run
from fakes.services import FakeServices, FakeTexts
from hypothesis import given
from hypothesis import strategies as st

from strop.parts.probe.mark_step_ends import MarkStepEnds

PIECES = {0: "a", 1: ".", 2: "\n", 3: ".\n\n", 4: "</think>", 5: "x.\n\n", 6: "\n\ny", 7: ""}


def ends(answers, **fields):
    ids = [id for answer in answers for id in answer]
    batch = flat_batch([len(a) for a in answers], range(len(answers)), id_T=ids)
    services = FakeServices(FakeTexts(pieces=PIECES))
    found = run(MarkStepEnds(**fields), batch, services=services).value
    pieces = torch.split(found, [len(a) for a in answers])
    return [piece.nonzero().squeeze(1).tolist() for piece in pieces]


def test_steps_end_where_the_text_has_the_marker():
    assert ends([[0, 3, 0, 5, 0]]) == [[1, 3]]
    assert ends([[0, 1, 2, 2, 0]]) == [[3]]  # over several tokens
    assert ends([[0, 1, 6, 0]]) == [[]]  # more text after it within the token
    assert ends([[3, 7, 0]]) == [[0]]  # a token without text ends nothing


def test_answers_are_looked_at_each_on_its_own_and_prompts_not_at_all():
    assert ends([[0, 1, 2], [2, 0, 3]]) == [[], [2]]
    batch = flat_batch((4,), id_T=[3, 1, 2, 2], mask_T=[False, False, True, True])
    found = run(MarkStepEnds(), batch, services=FakeServices(FakeTexts(pieces=PIECES))).value
    assert not found.any()


@given(
    st.lists(st.lists(st.sampled_from(list(PIECES)), min_size=1, max_size=12), max_size=4),
    st.sampled_from([".\n\n", "a", "a.", "</think>"]),
    st.sampled_from(["</think>", "", "aa", "\n\n"]),
)
def test_as_one_reads_an_answer_token_by_token(answers, marker, until):
    expected = []
    for answer in answers:
        said, found = "", []
        for place, id in enumerate(answer):
            said += PIECES[id]
            over = bool(until) and until in said
            if PIECES[id] and said.endswith(marker) and not over:
                found.append(place)
        expected.append(found)
    assert not answers or ends(answers, marker=marker, until=until) == expected


def test_nothing_ends_after_the_thinking():
    assert ends([[3, 0, 4, 3], [0, 3, 0, 0]]) == [[0], [1]]
    assert ends([[3, 0, 4, 3]], until="") == [[0, 3]]
    assert ends([[0, 1, 0, 1]], marker="a") == [[0, 2]]
