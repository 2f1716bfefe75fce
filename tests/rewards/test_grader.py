"""Grading outside the training process: the results of rewards, and what is refused."""

import numpy as np
import pytest
from grading import REWARDS, grade, grade_once, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.rewards.grader import Grader, weighted_sum
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError

pytestmark = pytest.mark.usefixtures("reward_file")


def test_scores_of_several_rewards_and_prints_do_no_harm():
    grades = grade_once([spec("length"), spec("ids")], ["a", "bbb", ""])
    assert grades.scores_BM.tolist() == [[1.0, 2.0], [3.0, 6.0], [0.0, 0.0]]
    assert grades.scores_BM.dtype == np.float64
    assert grades.scored_B.tolist() == [True] * 3
    assert grades.failures == ()
    assert 0 < grades.seconds < 5


def test_prints_go_to_the_log(tmp_path):
    with Grader([spec("length")], log=tmp_path / "log.txt") as grader:
        grade(grader, ["a"])
    log = (tmp_path / "log.txt").read_text()
    assert "printed by a reward" in log
    assert "written to descriptor one" in log


def test_an_empty_batch():
    grades = grade_once([spec("length"), spec("share")], [])
    assert grades.scores_BM.shape == (0, 2)
    assert grades.scored_B.shape == (0,)


def test_async_rewards_run_their_rows_together_and_see_the_step():
    with Grader([spec("sleepy")]) as grader:
        grade(grader, ["warm"], answer=["up"])
        grades = grade(grader, ["a"] * 300, answer=["a", "b"] * 150, step=4)
    assert grades.scores_BM[:, 0].tolist() == [4.0, 0.0] * 150
    assert grades.seconds < 2.0  # one after the other: 3 seconds


def test_all_calls_of_async_rewards_run_in_one_event_loop():
    with Grader([spec("limited")]) as grader:
        for _ in range(2):
            grades = grade(grader, ["a", "bbb"])
            assert grades.failures == ()
            assert grades.scores_BM[:, 0].tolist() == [1.0, 3.0]


def test_log_metric_and_log_extra():
    grades = grade_once([spec("logs")], ["a", "skip", "ccc"])
    assert grades.metrics == {"longest": 4.0}
    assert grades.extra == {"upper": ["A", "SKIP", "CCC"]}
    assert np.isnan(grades.scores_BM[1, 0])
    assert grades.scored_B.tolist() == [True, False, True]
    assert grades.failures == ()


def test_what_two_rewards_log_under_one_name_is_kept_twice():
    specs = [spec("logs"), spec("also_logs")]
    grades = grade_once(specs, ["a", "Bb"])
    assert grades.metrics == {"longest": 2.0, "also_logs/longest": 7.0}
    assert grades.extra == {"upper": ["A", "BB"], "also_logs/upper": ["a", "bb"]}
    assert grade_once(specs[::-1], ["a"]).extra == {"upper": ["a"], "logs/upper": ["A"]}


def test_logged_values_of_pieces_are_joined():
    texts = ["aa"] * 64 + ["a"] * 32
    grades = grade_once([spec("logs", rows_are_independent=True)], texts)
    assert grades.metrics == {"longest": pytest.approx((2 * 64 + 1 * 32) / 96)}
    assert grades.extra["upper"] == ["AA"] * 64 + ["A"] * 32


def test_a_column_with_gaps_has_one_mean_over_all_pieces(tmp_path):
    (tmp_path / "gaps.py").write_text(
        "def compute_score(solution_str):\n"
        "    late = {'a': None, 'b': 0.0, 'c': 1.0}[solution_str]\n"
        "    return {'score': 1.0, 'late': late}\n"
    )
    gaps = RewardSpec("r", f"{tmp_path}/gaps.py:compute_score", rows_are_independent=True)
    grades = grade_once([gaps], ["b"] + ["a"] * 63 + ["c"] * 3)
    assert grades.metrics == {"rewards/r/late": pytest.approx(3 / 4)}


def test_none_leaves_a_reward_out_of_the_sum():
    grades = grade_once([spec("logs"), spec("length")], ["a", "skip"])
    assert grades.scored_B.tolist() == [True, True]
    # 2 * 0.5 - 1 * 1 and -1 * 4 alone
    assert weighted_sum(grades.scores_BM, (2.0, -1.0)).tolist() == [0.0, -4.0]
    nothing = weighted_sum(np.array([[np.nan, np.nan], [1.0, np.nan]]), (0.5, 3.0))
    assert np.isnan(nothing[0])
    assert nothing[1] == 0.5
    with pytest.raises(ValueError, match="3 weights for 2 rewards"):
        weighted_sum(grades.scores_BM, (1.0, 1.0, 1.0))


def test_chat_prompts_give_completions_as_messages():
    prompts = [[{"role": "user", "content": "echo"}], [{"role": "user", "content": "other"}]]
    assert grade_once([spec("chat")], ["echo", "echo"], prompts=prompts).scores_BM.tolist() == [
        [1.0],
        [0.0],
    ]


def test_built_in_math_verify():
    grades = grade_once([RewardSpec("right", "math_verify")], ["\\boxed{1/2}"], answer=["0.5"])
    assert grades.scores_BM.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[1.0]", "returned 1 scores for 2 completions"),
        ("[1.0, float('nan')]", "returned nan (float) for row 1"),
        ("[float('inf'), 0]", "returned inf (float) for row 0"),
        ("['1', 0]", "returned '1' (str) for row 0"),
        ("[[1], 0]", "returned [1] (list) for row 0"),
        ("0.5", "returned 0.5 (float): it must return a list"),
        ("None", "returned None (NoneType): it must return a list"),
        ("'ab'", "returned 'ab' (str): it must return a list"),
    ],
)
def test_a_wrong_result_is_refused(expression, expected):
    with Grader([spec("returns")]) as grader:
        with pytest.raises(UserError) as caught:
            grade(grader, ["a", "b"], answer=[expression] * 2, strict=True)
        assert f"rewards.py:returns {expected}" in str(caught.value)
        again = grade(grader, ["a", "b"], answer=["[True, __import__('numpy').float32(2)]"] * 2)
        assert again.scores_BM[:, 0].tolist() == [1.0, 2.0]


def test_a_refusal_while_other_workers_are_busy_leaves_no_late_reply():
    with Grader([spec("returns"), spec("sleepy")], num_workers=2) as grader:
        with pytest.raises(UserError):
            grade(grader, ["a"] * 2, answer=["1"] * 2)
        grades = grade(grader, ["[3]"], answer=["[3]"], step=2)
    assert grades.scores_BM.tolist() == [[3.0, 2.0]]


def test_a_missing_column_is_refused_before_training():
    with Grader([spec("sleepy")]) as grader:
        grader.check(["answer", "level"])
        with pytest.raises(UserError, match=r"'answer'.*did you mean 'answers'.*answers, level"):
            grader.check(["answers", "level"])
        with pytest.raises(UserError, match="'answer'"):
            grade(grader, ["a"])


def test_columns_of_another_length_are_refused():
    with Grader([spec("length")]) as grader, pytest.raises(ValueError, match="answer has 1"):
        grade(grader, ["a", "b"], answer=["a"])


def test_loading_mistakes_show_at_once(tmp_path):
    (tmp_path / "dies.py").write_text("import os\nos._exit(3)\n")
    (tmp_path / "lacks.py").write_text("import no_such_package\n")
    for source, expected in (
        ("dies.py:f", "loading the rewards dies.py:f: the process ended itself with exit code 3"),
        ("rewards.py:lenght", "did you mean 'length'?"),
        ("lacks.py:f", "lacks.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
    ):
        with pytest.raises(UserError) as caught:
            Grader([RewardSpec("r", source)])
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("specs", "options"),
    [([], {}), ([1, 1], {}), ([1], {"timeout_seconds": 0}), ([1], {"num_workers": 0})],
)
def test_settings_that_make_no_sense(specs, options):
    with pytest.raises(UserError, match=r"rewards are named|make both positive"):
        Grader([spec("length") for _ in specs], **options)


def test_random_rewards_do_not_depend_on_the_workers():
    texts = ["x"] * 130
    specs = [spec("noise"), RewardSpec("pieces", "rewards.py:noise", rows_are_independent=True)]
    one, three = (grade_once(specs, texts, num_workers=n).scores_BM for n in (1, 3))
    assert (one == three).all()
    assert len(set(one[:, 0])) == 130
    assert not (one[:, 0] == one[:, 1]).any()


def test_a_call_that_imports_a_library_draws_as_a_later_one():
    with Grader([spec("noise_of_libraries")], timeout_seconds=60.0) as grader:
        first, other, again = (grade(grader, ["x"], step=n).scores_BM.item() for n in (2, 1, 2))
    assert first == again != other


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "rewards.py"
    path.write_text(REWARDS)
    specs = [RewardSpec("share", f"{path}:share"), RewardSpec("logs", f"{path}:logs")]
    with Grader(specs) as grader:
        yield grader


@settings(max_examples=20)
@given(
    rows=st.lists(st.text("abc", min_size=1, max_size=8) | st.just("skip"), min_size=1, max_size=8),
    data=st.data(),
)
def test_permuting_rows_permutes_scores(shared, rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    whole = grade(shared, rows)
    permuted = grade(shared, [rows[i] for i in order])
    np.testing.assert_array_equal(whole.scores_BM[order], permuted.scores_BM)
    assert [whole.extra["upper"][i] for i in order] == permuted.extra["upper"]
