"""Arguments of Python calls: integers, floats, and the system's error for too long a name."""

import errno
from collections.abc import Sequence

import numpy as np
import pytest

from strop.api.arguments import checked
from strop.support.errors import UserError


@checked
def taken(whole: Sequence[int] = (), numbers: Sequence[float] = ()) -> tuple[object, object]:
    return whole, numbers


def test_a_list_of_whole_numbers_takes_no_others_and_one_of_numbers_takes_both() -> None:
    assert taken(whole=[1, 2], numbers=[0.5, 2]) == ((1, 2), (0.5, 2))
    assert taken(whole=3, numbers=0.5) == ((3,), (0.5,))
    for whole in ((1, 2.0), 0.5):
        with pytest.raises(UserError, match=r"whole is .*: give whole numbers in a list"):
            taken(whole=whole)


def test_numbers_of_numpy_are_numbers() -> None:
    assert taken(whole=np.arange(1, 3), numbers=np.float32(0.5)) == ((1, 2), (0.5,))
    with pytest.raises(UserError, match=r"whole is 0\.5: give whole numbers in a list"):
        taken(whole=np.float64(0.5))


def test_only_a_name_that_is_too_long_is_the_callers_mistake() -> None:
    @checked
    def fails(number: int) -> None:
        raise OSError(number, "said by the system", "a name")

    with pytest.raises(UserError, match="a name is too long for a file: 'a name'"):
        fails(errno.ENAMETOOLONG)
    with pytest.raises(FileNotFoundError):
        fails(errno.ENOENT)
