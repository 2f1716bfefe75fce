from strop.support.exits import Exit


def test_what_the_policy_cannot_have_brought_about():
    outside = {exit.label for exit in Exit if not exit.is_policys}
    assert outside == {
        "environment_crash", "unreachable", "start_failed", "engine_lost", "reward_bug",
        "not_tried", "declared", "pending",
    }  # fmt: skip


def test_what_is_pending_will_have_a_score():
    assert not Exit.PENDING.leaves_unscored("unscored")
    assert Exit.DECLARED.leaves_unscored(0.0)
