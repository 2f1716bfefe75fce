"""Programs with one wrong operator: which repairs pass, their rewards, and what is shown."""

import pytest

import strop
from strop.environments.base import EnvironmentSource
from strop.environments.built_in.trace_repair import Best, Program, Task, TraceRepair, task_of
from strop.environments.episodes import Episodes
from strop.support.errors import UserError

# x = 4: 7, 14 -> 4, 4 - 5 -> 9; with + in line 2: 7, 9, 4
BROKEN = Program((("+", 3), ("+", 2), ("-", 5)))
TASK = Task(BROKEN, (2, "*"), ((4, 9), (1, 3), (0, 1), (2, 5), (8, 7)))


def given(task=TASK, **options):
    """An episode of a task of one's own."""
    environment = TraceRepair(style="compact", **options)
    environment.reset(0)
    environment.task, environment.program = task, task.program
    environment.best = Best(len(task.tests), task.passed(task.program))
    return environment


def test_a_program_by_hand():
    assert BROKEN.trace(4) == [7, 9, 4]
    assert BROKEN.repaired(TASK.answer).trace(4) == [7, 4, 9]
    assert len(BROKEN.repairs()) == 6
    assert TASK.passed(BROKEN) == 0
    assert TASK.passing() == [(2, "*")]


def test_a_repair_is_right_only_if_hidden_tests_pass():
    assert TASK.passing(1) == [(1, "*"), (2, "*")]  # on 4 both give 9
    assert TASK.passing(2) == [(2, "*")]  # on 1 the first gives 3, 5, 0
    assert given(tests=1).step("1*").reward == 0  # it passes what is shown
    assert given(tests=1).step("2*").reward == 1


def test_counted_over_programs():
    """The counts of the method card, within what 1200 draws vary by."""
    for shown, num_passing, unique in ((1, 1.58, 0.55), (2, 1.27, 0.76), (3, 1.21, 0.81)):
        tasks = [task_of(seed, 3, shown, 0) for seed in range(1200)]
        counts = [len(each.passing(shown)) for each in tasks]
        assert sum(counts) / 1200 == pytest.approx(num_passing, abs=0.05)
        assert counts.count(1) / 1200 == pytest.approx(unique, abs=0.04)
        assert all(each.answer in each.passing(shown) for each in tasks)
        assert all(each.passed(each.program, shown) < shown for each in tasks)


def test_the_best_by_hand():
    best = Best(tests=5, passed=2)
    over, worth = [], []
    for passed in (1, 3, 3, 2):
        worth.append(best.take(passed))
        over.append(best.is_over)
    assert worth == pytest.approx([0, 0.2, 0, 0])
    assert over == [False, False, False, True]
    assert sum(worth) == pytest.approx((best.passed - 2) / 5)


def test_attempts_pay_what_they_add():
    environment = given(attempts=5)
    first = environment.step("1*")  # 4 * 3 -> 2, 4, 9 is right; 0, 2, 7 is not
    passed = TASK.passed(BROKEN.repaired((1, "*")))
    assert first.reward == passed / 5 > 0
    assert environment.program == BROKEN.repaired((1, "*"))
    second = environment.step("3+")
    assert (second.reward, second.done, second.valid) == (0, False, True)
    assert second.text.endswith("(3+)=")
    third = environment.step("x")
    assert (third.reward, third.done, third.valid) == (0, True, False)
    assert third.measures == {"solved": 0, "passed": passed / 5}
    environment = given(attempts=5)
    last = environment.step("2*")
    assert (last.reward, last.done, last.measures["solved"]) == (1, True, 1)


def test_what_is_shown():
    environment = given(tests=2)
    assert environment._compact() == "+3+2-5:4,794,9:1,461,3="
    environment.has_trace = False
    assert environment._compact() == "+3+2-5:4,9:1,3="
    for trace in (True, False):
        plain = TraceRepair(trace=trace)
        text = plain.reset(3).text
        assert ("after its lines x is" in text) == trace
        assert text.count(" should end as ") == 2  # of five
        at, operator = plain.task.answer
        found = plain.step(f"Line {at} should have {operator}.")
        assert (found.reward, found.done, found.valid) == (1, True, True)
    assert plain.columns() == {"answer": f"{at} {operator}"}


@pytest.mark.parametrize("action", ["", "+2", "0+", "4+", "2 +"])
def test_what_is_no_repair(action):
    found = given().step(action)
    assert (found.valid, found.reward, found.done) == (False, 0, True)


def test_words_that_name_two_repairs_are_none():
    plain = TraceRepair()
    plain.reset(0)
    assert not plain.step("1 + or 2 *").valid


def test_an_evaluation_has_what_is_measured():
    found = strop.evaluate("tiny", task="trace_repair", prompts=4, samples=2, k=1, seed=1)
    assert found["measures/solved"] == found["mean@2"]
    assert 0 <= found["measures/passed"] < 1
    assert found.by_prompt["mean@2"].mean() == pytest.approx(found["mean@2"])


def test_episodes_repeat():
    source = EnvironmentSource("trace_repair", {"style": "compact", "attempts": 3})
    texts = [[each.text for each in Episodes(source, [5, 6]).reset()] for _ in range(2)]
    assert texts[0] == texts[1]
    assert source.make().rewrites


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lines": 1}, "lines must be a whole number from 2 to 9"),
        ({"tests": 8}, "held_back must be a whole number from 0 to 2"),
        ({"trace": "yes"}, "trace must be true or false, it is 'yes'"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        TraceRepair(**options)
