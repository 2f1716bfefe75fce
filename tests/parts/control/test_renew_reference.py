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
