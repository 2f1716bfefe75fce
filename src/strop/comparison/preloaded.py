"""The one module that the fork server of a comparison imports; its copies are the runs."""

import os
import signal

from strop.comparison.child import PRELOADED
from strop.support.garbage_collection import preload
from strop.support.stopping import INTERRUPTED

_SERVER = os.getpid()


def _end_a_copy(number: int, frame: object) -> None:
    """The server outlives a signal to its whole process group, since only it knows how runs end.

    A copy that has not set its own handlers yet has nothing to save.
    """
    if os.getpid() != _SERVER:
        os._exit(INTERRUPTED)


preload(PRELOADED)
for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _end_a_copy)
