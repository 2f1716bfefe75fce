"""Given lengths: distributions with and without a limit, and files."""

import numpy as np
import pytest

from strop import UserError
from strop.planning.lengths import log_normal, read_lengths, regrouped


def test_a_cut_distribution_has_the_mean_of_the_cut_answers():
    found = np.concatenate(log_normal([3000.0, 9000.0], 16, 4000))
    assert found.max() == 4000
    assert found.mean() == pytest.approx(3000, rel=0.03)
    assert 0.2 < (found == 4000).mean() < 0.5  # so many that a quarter of the mean is left to give
    free = np.concatenate(log_normal([3000.0, 9000.0], 16, 1e6))
    assert free.mean() == pytest.approx(3000, rel=0.03)
    assert np.percentile(free, 99) == pytest.approx(9000, rel=0.1)


def test_what_no_distribution_has():
    with pytest.raises(UserError, match="the mean is above --max-tokens 2000"):
        log_normal([3000.0, 9000.0], 16, 2000)


def test_a_file_has_a_length_in_each_line(tmp_path):
    place = tmp_path / "lengths.txt"
    place.write_text("3\n5\n\n7\n9\n11\n")
    assert [group.tolist() for group in read_lengths(place, 2)] == [[3, 5], [7, 9]]
    for text, why in (
        ("3\n4.5", "4.5 is no whole number"),
        ("0\n1", "0 is no whole"),
        ("3\n²", "² is no whole"),
        ("3\n1" + 20 * "0", "0 is no whole number from 1 to 1e"),
        ("7", "1 num"),
    ):
        place.write_text(text)
        with pytest.raises(UserError, match=why):
            read_lengths(place, 2)


def test_groups_of_another_size():
    known = [np.array([1, 2]), np.array([3, 4]), np.array([5, 6])]
    assert regrouped(known, 2) == known
    assert [group.tolist() for group in regrouped(known, 4)] == [[1, 2, 3, 4]]
    assert [group.tolist() for group in regrouped(known, 8)] == [[1, 2, 3, 4, 5, 6, 1, 2]]
