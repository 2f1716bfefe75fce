"""The names under which processes send errors to one another."""

import pytest

from strop.support.errors import PLAIN, RunStopped, UserError, plain_name


class TooMany(UserError):
    """A mistake of its own class."""


class Lost(RunStopped):
    """An end of its own class."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [(UserError, UserError), (TooMany, UserError), (RunStopped, RunStopped), (Lost, RunStopped)],
)
def test_an_error_has_the_name_of_a_class_that_every_process_knows(error, kind):
    assert PLAIN[plain_name(error("words"))] is kind
