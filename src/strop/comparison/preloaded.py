"""The one module that the fork server of a comparison imports; its copies are the runs."""

import os
import signal
from functools import partial

from strop.comparison.child import PRELOADED
from strop.support.garbage_collection import preload
from strop.support.stopping import INTERRUPTED

_SERVER = os.getpid()
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def _end_a_copy(number: int, frame: object) -> None:
    """The server outlives a signal to its whole process group, since only it knows how runs end.

    A copy that has not set its own handlers yet has nothing to save.
    """
    if os.getpid() != _SERVER:
        os._exit(INTERRUPTED)


preload(PRELOADED)
for _number in _ENDING:
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _end_a_copy)
# A signal to a copy waits until the fork is complete: Python drops one that comes within.
_go_on = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _ENDING)
os.register_at_fork(
    before=partial(signal.pthread_sigmask, signal.SIG_BLOCK, _ENDING),
    after_in_parent=_go_on,
    after_in_child=_go_on,
)
