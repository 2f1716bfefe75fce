from builders import flat_batch, run

from strop.parts.advantage.baseline.keep_made_advantage import KeepMadeAdvantage


def test_rows_have_the_advantage_that_they_were_made_with():
    batch = flat_batch((1, 2, 1), advantage_B=[1.0, 2.0, 3.0], made_advantage_B=[-0.5, 0.25, 0.1],
                       scored_B=[True, True, False])  # fmt: skip
    assert run(KeepMadeAdvantage(), batch).value.tolist() == [-0.5, 0.25, 0.0]


def test_without_the_column_advantages_stay():
    batch = flat_batch((1, 1), advantage_B=[1.0, float("nan")], scored_B=[True, False])
    assert run(KeepMadeAdvantage(), batch).value.tolist() == [1.0, 0.0]
