import numpy as np
import pytest

from strop.evaluation.task_matrix import kept
from strop.support.errors import UserError

R = [[0.80, 0.20, 0.10], [0.60, 0.75, 0.15], [0.50, 0.70, 0.70]]
BEFORE = (0.30, 0.15, 0.10)


def test_worked_example():
    found = kept(R, BEFORE, (0.62, 0.60, 0.58, 0.55), [[0.02] * 3, [0.03] * 3, [0.04] * 3])
    # 1.1/3, 1.5/3, 1.9/3; of those seen .8, 1.35/2, 1.9/3
    assert found.accumulation.tolist() == pytest.approx([0.3666667, 0.5, 0.6333333])
    assert found.seen.tolist() == pytest.approx([0.8, 0.675, 0.6333333])
    assert found.learnt == pytest.approx(0.75)
    assert found.forgetting == pytest.approx(0.175)  # (.8 - .5 + .75 - .7) / 2
    assert found.backward == pytest.approx(-0.175)
    assert found.forward == pytest.approx(0.05)  # (.2 - .15 + .15 - .1) / 2
    assert found.retention.tolist() == pytest.approx([0.967742, 0.935484, 0.887097], abs=1e-6)
    assert found.error == pytest.approx(0.03)


def test_forgetting_looks_at_the_best_of_all_times_and_backward_transfer_at_its_own():
    found = kept([[0.5, 0.9], [0.6, 0.7]], (0.1, 0.2))
    assert found.forgetting == 0  # the first task is best at the end
    assert found.backward == pytest.approx(0.1)
    assert found.forward == pytest.approx(0.7)


def test_one_task_is_an_evaluation_after_training():
    found = kept([[0.8]], (0.3,))
    assert found.learnt == found.accumulation[0] == 0.8
    assert np.isnan([found.forgetting, found.backward, found.forward, found.error]).all()
    assert found.retention.size == 0
    assert np.isnan(kept([[0.8]], (0.3,), (0.0, 0.1)).retention).all()


@pytest.mark.parametrize(
    ("matrix", "before", "heldout", "message"),
    [
        ([[0.1, 0.2]], (0.1, 0.2), (), "T x T"),
        ([[0.1]], (0.1, 0.2), (), "T before it"),
        ([], (), (), "T x T"),
        ([[0.1]], (0.1,), (0.5,), "start and after each"),
    ],
)
def test_what_is_no_such_matrix_is_refused(matrix, before, heldout, message):
    with pytest.raises(UserError, match=message):
        kept(matrix, before, heldout)
