import pytest

from strop.parts.control.renew_reference import RenewReference


def test_times_of_renewal():
    def made(**fields):
        part, found = RenewReference(**fields), []
        state = part.init()
        for _ in range(8):
            result = part(state=state)
            state = result.state
            found.append(result.value["model.reference"])
        return found

    assert made(after=3) == [0, 0, 3, 3, 3, 3, 3, 3]
    assert made(after=3, every=2) == [0, 0, 3, 3, 5, 5, 7, 7]


def test_an_average_counts_the_start_as_one_of_the_policies():
    # W = 1, then decay W + 1: 1.5, 1.75, 1.875; the policy's share is 1 / W
    part = RenewReference(after=1, every=1, decay=0.5)
    state, shares = part.init(), []
    for _ in range(3):
        result = part(state=state)
        state = result.state
        shares.append(result.value["model.reference_share"])
    assert shares == pytest.approx([1 / 1.5, 1 / 1.75, 1 / 1.875])
    plain = RenewReference(after=1, every=1)
    assert plain(state=plain.init()).value["model.reference_share"] == 1
