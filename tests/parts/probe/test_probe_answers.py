import math

import pytest
import torch
from builders import flat_batch, run
from fakes.engine import TableEngine, by_last_token
from fakes.services import over_table

from strop.parts.probe.probe_answers import ProbeAnswers, potential
from strop.support.errors import UserError

TEXT = {0: "$", 1: "[", 2: "7", 3: "8"}
# After "[" the answer is 7 with 0.6; a digit is followed by the end.
TABLE = by_last_token({1: (0, 0, 0.6, 0.4), 2: (1, 0, 0, 0), 3: (1, 0, 0, 0), 0: (1, 0, 0, 0)})


def test_corners_of_the_potential():
    assert potential([[{5: 0.0}]], [5]) == pytest.approx(1.0)  # sure and right
    assert potential([[{6: 0.0}]], [5]) == pytest.approx(-1.0)  # sure and wrong
    unsure = dict.fromkeys(range(10_000), -math.log(10_000))
    assert potential([[unsure]], [10_001]) == pytest.approx(0.0, abs=2e-4)
    assert potential([[{5: 0.0, 6: -math.inf}]], [5, 6]) == pytest.approx(0.0)  # half of it right


def test_potential_by_hand():
    half = {5: math.log(0.5), 6: math.log(0.5)}
    sure = {6: 0.0}
    # two answers: places (half, sure) and (half); the reference is 5, 6
    conf = (math.exp(-math.log(2) / 2) + math.exp(-math.log(2))) / 2
    acc = ((0.5 + 1.0) / 2 + (0.5 + 0.0) / 2) / 2
    found = potential([[half, sure], [half]], [5, 6])
    assert found == pytest.approx(1.5 * acc * conf + 0.5 * acc - conf)


def test_each_answer_agrees_with_one_of_several_references():
    # answers 7 and 8: the first is that reference with 0.9, the second this one with 0.8
    seven, eight = {7: math.log(0.9), 8: math.log(0.1)}, {7: math.log(0.2), 8: math.log(0.8)}
    conf = sum(math.exp(p * math.log(p) + (1 - p) * math.log(1 - p)) for p in (0.9, 0.8)) / 2
    acc = (0.9 + 0.8) / 2
    found = potential([[seven], [eight]], [7], [8])
    assert found == pytest.approx(1.5 * acc * conf + 0.5 * acc - conf)
    alone = (0.9 + 0.2) / 2
    assert potential([[seven], [eight]], [7]) == pytest.approx(
        1.5 * alone * conf + 0.5 * alone - conf
    )


def probed(part, ends, columns, context=100, seed=0):
    # prompt token 3; two answers of which the steps end at the given rows
    batch = flat_batch(
        (4, 3), (0, 1), id_T=[3, 2, 2, 0, 3, 3, 0], uid_P=[5, 6],
        mask_T=[False, True, True, True, False, True, True],
    )  # fmt: skip
    step_end_T = torch.zeros(7, dtype=torch.bool)
    step_end_T[ends] = True
    services = over_table(
        TableEngine(TABLE), {5: (3,), 6: (3,)}, pieces=TEXT, rows=columns, context_tokens=context
    )
    rng = torch.Generator().manual_seed(seed)
    found = run(part, batch.set(step_end_T=step_end_T), services=services, rng=rng).value
    return found, services


PART = ProbeAnswers(opening="[", num_answers=4, max_tokens=2)


def test_answers_are_forced_after_each_step():
    columns = {5: {"answer": "7"}, 6: {"answer": 8}}
    found, services = probed(PART, [1, 2, 5], columns)
    assert [r.ids for r in services.sampling.asked[::4]] == [(3, 2, 1), (3, 2, 2, 1), (3, 3, 1)]
    assert all(r.max_tokens == 2 and r.temperature == 0.6 for r in services.sampling.asked)
    assert len({r.seed for r in services.sampling.asked}) == 12
    # Place 1 has H of (0.6, 0.4), place 2 none; p(7) = 0.6 and p(8) = 0.4 before the temperature.
    conf = math.exp(-(-0.6 * math.log(0.6) - 0.4 * math.log(0.4)) / 2)
    seven, eight = (1.5 * acc * conf + 0.5 * acc - conf for acc in (0.6, 0.4))
    assert found[[1, 2, 5]].tolist() == pytest.approx([seven, seven, eight], abs=1e-5)
    assert found.isnan().tolist() == [True, False, False, True, True, False, True]
    listed = {5: {"answer": ["7"]}, 6: {"answer": ["", None, 8]}}
    assert probed(PART, [1, 2, 5], listed)[0][[1, 2, 5]].equal(found[[1, 2, 5]])
    either, _ = probed(PART, [1], {5: {"answer": ["8", "7"]}, 6: {}})
    assert either[1] == found[1]  # at one place the likelier one counts


def test_what_cannot_be_probed_has_no_potential():
    for nothing in (None, "", [], [None]):
        columns = {5: {"answer": nothing}, 6: {"answer": "8"}}
        found, services = probed(PART, [1, 5], columns)
        assert found[1].isnan()
        assert not found[5].isnan()
        assert len(services.sampling.asked) == 4
    columns = {5: {"answer": "7"}, 6: {"answer": "8"}}
    found, _ = probed(PART, [1, 2], columns, context=4)
    assert found.isnan().tolist() == [True, False, *[True] * 5]
    found, services = probed(PART, [], columns)
    assert found.isnan().all()
    assert services.sampling.asked == []
    with pytest.raises(UserError, match=r"solution.*set probes\.reference to one of answer"):
        probed(ProbeAnswers(opening="[", reference="solution"), [1], columns)
