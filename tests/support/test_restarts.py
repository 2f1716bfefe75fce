"""How often something is restarted before the run stops."""

import pytest

from strop.support.errors import RunStopped
from strop.support.processes import Restarts


def test_what_dies_again_and_again_stops_the_run():
    restarts = Restarts("engine 1 was lost", allowed=2)
    for _ in range(2):
        restarts.count("killed")
    restarts.worked()
    for _ in range(2):
        restarts.count("killed")
    why = r"^engine 1 was lost 3 times in a row \(no answer for 5 s\); is there memory\?$"
    with pytest.raises(RunStopped, match=why):
        restarts.count("no answer for 5 s", "; is there memory?")
    assert restarts.total == 5


def test_where_none_is_allowed_the_first_stops_the_run():
    with pytest.raises(RunStopped, match=r"^the trainers were lost \(killed\)$"):
        Restarts("the trainers were lost", allowed=0).count("killed")
