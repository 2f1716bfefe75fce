"""The folder through which weights reach another process: whole versions, and no leftovers."""

import contextlib
import errno
import os
import subprocess
import sys

import pytest

from strop.engines.weights_folder import JUST_MADE_SECONDS, WeightsFolder
from strop.support.errors import RunStopped

MAKE = """
import sys
from strop.engines.weights_folder import WeightsFolder
print(WeightsFolder(1, "", sys.argv[1]).path, flush=True)
"""


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_a_version_is_seen_whole_or_not_at_all(tmp_path):
    folder = WeightsFolder(1, "", str(tmp_path))

    def half(path):
        path.write_text("half")
        assert names(folder) == [".1"]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunStopped, match=f"weights could not be written to {folder.path}: no room"):
        folder.put("1", half)
    assert names(folder) == []
    assert folder.put("1", lambda path: path.write_text("one")).read_text() == "one"
    folder.put("2", lambda path: path.mkdir())
    assert names(folder) == ["1", "2"]
    folder.clear()
    assert names(folder) == []
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_deleted_by_the_next_one(tmp_path):
    with contextlib.closing(WeightsFolder(1, "", str(tmp_path))) as ours:
        made = subprocess.run(
            [sys.executable, "-c", MAKE, str(tmp_path)], capture_output=True, text=True, check=True
        )
        left = made.stdout.strip()
        long_ago = os.stat(left).st_mtime - 2 * JUST_MADE_SECONDS
        WeightsFolder(1, "", str(tmp_path)).close()
        assert os.path.exists(left)  # for it might not be locked yet
        for path in (left, ours.path):
            os.utime(path, (long_ago, long_ago))
        WeightsFolder(1, "", str(tmp_path)).close()
        assert not os.path.exists(left)
        assert ours.path.exists()
    assert not ours.path.exists()
