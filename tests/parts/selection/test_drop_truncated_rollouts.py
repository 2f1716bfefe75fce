from builders import ragged_batch, run, tokens_of

from strop.parts.selection.drop_truncated_rollouts import DropTruncatedRollouts


def test_truncated_rollouts_leave_gradient_and_denominator():
    batch = ragged_batch(1)
    selected = run(DropTruncatedRollouts(), batch).value
    assert 0 < int(batch["truncated_B"].sum()) < batch.size("B")
    for i in range(batch.size("B")):
        expected = not bool(batch["truncated_B"][i])
        rows = tokens_of(batch, i)
        assert selected.gradient_T[rows].tolist() == [expected] * len(rows)
        assert selected.denominator_T[rows].tolist() == [expected] * len(rows)
    assert not selected.gradient_T[~batch["mask_T"]].any()


def test_all_truncated_leaves_nothing():
    batch = ragged_batch(1)
    batch = batch.set(truncated_B=batch["truncated_B"] | True)
    assert not run(DropTruncatedRollouts(), batch).value.denominator_T.any()
