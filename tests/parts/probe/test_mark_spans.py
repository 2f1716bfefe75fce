from itertools import chain

import pytest
import torch
from builders import run
from fakes.services import FakeServices, FakeTexts

from strop.batch.batch import Batch
from strop.parts.probe.mark_spans import MarkSpans
from strop.support.errors import UserError

TEXT = dict(enumerate("()+-*/01ab"))
IDS = {c: i for i, c in TEXT.items()}
PART = MarkSpans(("(", ")"), ("+", "-"), ("*", "/"), ("0",))
SERVICES = FakeServices(FakeTexts(pieces=TEXT))


def marked(*turns, part=PART):
    """Bits of every token by turn, switches, and subgoals; an observation stands before each."""
    ids = [[IDS["1"], *(IDS[c] for c in turn)] for turn in turns]
    sizes = torch.tensor([len(turn) for turn in ids])
    turn_T = torch.repeat_interleave(torch.arange(len(turns)), sizes)
    first_T = torch.cat([torch.ones(1), turn_T.diff()]) > 0
    batch = Batch({
        "turn_T": turn_T, "id_T": torch.tensor(list(chain(*ids))), "mask_T": ~first_T,
        "rollout_K": torch.zeros(len(turns), dtype=torch.long), "group_B": torch.zeros(1).long(),
        "uid_P": torch.zeros(1).long(), "draw_P": torch.zeros(1).long(),
    })  # fmt: skip
    span_T, switch_K, subgoal_K = run(part, batch, services=SERVICES).value
    assert not span_T[first_T].any()
    bits = [span_T[~first_T & (turn_T == k)].tolist() for k in range(len(turns))]
    return bits, switch_K.tolist(), subgoal_K.tolist()


def test_blocks_take_their_tags_with_them():
    bits, switch, _ = marked("(1)+ab-*a/", "(0)a+b-b*a/1")
    assert bits[0] == [1, 1, 1, 2, 2, 2, 2, 4, 4, 4]
    assert bits[1] == [1, 1, 1, 0, 2, 2, 2, 0, 4, 4, 4, 0]
    assert switch == [True, False]


def test_what_is_missing():
    bits, switch, subgoal = marked("aba", "()*a/", "(1+a-", "*a")
    assert bits == [[4, 4, 4], [1, 1, 4, 4, 4], [4, 4, 6, 6, 6], [4, 4]]
    assert switch == [False] * 4  # an empty one, and one that is not closed, keep
    assert subgoal[0] == subgoal[1] == subgoal[3] == 0
    assert subgoal[2] != 0


def test_subgoals_are_equal_with_equal_tokens():
    _, _, subgoal = marked("+a-", "+ab-", "+a-", "b+ab-")
    assert subgoal[0] == subgoal[2] != subgoal[1] == subgoal[3]
    assert 0 not in subgoal


def test_words_of_several_letters_in_either_case():
    words = MarkSpans(("(", ")"), ("+", "-"), ("*", "/"), ("AB", "0"))
    assert marked("(ab)", "(0)", "(a)", part=words)[1] == [False, False, True]


def test_a_turn_without_tokens():
    bits, switch, subgoal = marked("", "(1)")
    assert bits == [[], [5, 5, 5]]
    assert (switch, subgoal) == ([False, True], [0, 0])


def test_refuses_tags_that_are_none():
    for tags in (("<action>", ""), ("<action>",)):
        with pytest.raises(UserError, match="action_tags takes two texts"):
            MarkSpans(action_tags=tags)


def test_the_share_of_turns_that_switch_is_logged():
    batch = Batch({
        "turn_T": torch.arange(3).repeat_interleave(3), "mask_T": torch.ones(9, dtype=torch.bool),
        "id_T": torch.tensor([IDS[c] for c in "(1)(0)(1)"]), "group_B": torch.zeros(1).long(),
        "rollout_K": torch.zeros(3).long(), "uid_P": torch.zeros(1).long(),
        "draw_P": torch.zeros(1).long(),
    })  # fmt: skip
    told = run(PART, batch, services=SERVICES).metrics
    assert told == {"spans/frac_switching": pytest.approx(2 / 3)}
