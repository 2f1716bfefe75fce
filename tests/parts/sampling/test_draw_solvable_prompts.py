"""Which prompts are kept, decided only by the outcomes of their answers."""

import pytest
import torch

from strop.parts.sampling.draw_solvable_prompts import DrawSolvablePrompts
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [False, True, True, False]),
        ({"drop_mastered": True}, [False, False, True, False]),
        ({"threshold": -1, "spread": 0.0}, [False, False, True, True]),
        ({"threshold": -1, "spread": 0.25}, [False, False, True, False]),
        ({"threshold": 1, "spread": 0.0}, [False, False, False, False]),
        ({"success": 0.25}, [False, True, True, True]),
        ({"success": 0.9, "spread": 0.0}, [False, False, True, False]),
    ],
)
def test_what_teaches(fields, kept):
    prompts = [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.25, 0.5]]
    part = DrawSolvablePrompts(**fields)
    assert [part._teaches(outcomes) for outcomes in prompts] == kept


def test_outcomes_are_judged_as_the_float32_numbers_that_they_are():
    outcome = torch.tensor([0.9, 0.5]).tolist()  # 0.8999999761581421
    assert DrawSolvablePrompts(success=0.9)._teaches(outcome)


def test_spread_is_a_difference():
    with pytest.raises(UserError, match=r"spread must be at least -1"):
        DrawSolvablePrompts(spread=-1.5)
