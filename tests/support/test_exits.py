from strop.support.exits import Exit, shares


def test_shares_of_every_cause_but_done():
    exits = [Exit.DONE, Exit.TIMEOUT, Exit.TIMEOUT, Exit.UNREACHABLE, Exit.DONE]
    assert shares(map(int, exits)) == {"exit/timeout": 2 / 5, "exit/unreachable": 1 / 5}
    assert shares([]) == {}


def test_what_the_policy_cannot_have_brought_about():
    outside = {exit.label for exit in Exit if not exit.is_policys}
    assert outside == {
        "environment_crash", "unreachable", "start_failed", "engine_lost", "reward_bug",
        "not_tried", "declared", "pending",
    }  # fmt: skip


def test_what_is_pending_will_have_a_score():
    assert not Exit.PENDING.leaves_unscored("unscored")
    assert Exit.DECLARED.leaves_unscored(0.0)
