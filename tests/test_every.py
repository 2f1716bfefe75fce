"""A test over many cases runs for each, and names the ones that failed and why."""

from types import SimpleNamespace

import every
import pytest


def test_all_run_and_those_that_fail_are_named(monkeypatch):
    monkeypatch.setattr(every, "KNOWN", set())
    seen = []

    @every.every("number", [1, 2, 3, 4])
    def is_odd(number, given):
        seen.append((number, given))
        if number == 4:
            pytest.fail("four")
        assert number % 2, f"{number} is even"

    with pytest.raises(BaseExceptionGroup, match=r"^2, 4$") as told:
        is_odd(given="something")
    assert seen == [(number, "something") for number in (1, 2, 3, 4)]
    texts = [str(error) for error in told.value.exceptions]
    assert "2 is even" in texts[0]
    assert texts[1] == "four"
    assert [error.__notes__ for error in told.value.exceptions] == [
        ["This is of 2."], ["This is of 4."],
    ]  # fmt: skip
    monkeypatch.setattr(every, "ONLY", {"1", "3"})
    is_odd(given="")
    assert [number for number, _ in seen[4:]] == [1, 3]


@pytest.mark.parametrize(
    ("given", "other"),
    [({"recipe": "1"}, False), ({"recipe": "2"}, True), ({"recipe": "none"}, False), ({}, False)],
)
def test_parametrised_items_run_for_those_asked_for_alone(monkeypatch, given, other):
    monkeypatch.setattr(every, "KNOWN", {"1", "2"})
    item = SimpleNamespace(callspec=SimpleNamespace(params=given))
    assert not every.is_of_another(item)
    monkeypatch.setattr(every, "ONLY", {"1"})
    assert every.is_of_another(item) is other
    assert not every.is_of_another(SimpleNamespace())  # has no parameters
