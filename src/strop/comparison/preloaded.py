"""The one module that the fork server of a comparison imports; its copies are the runs."""

import signal

from strop.comparison.child import ENDING, PRELOADED
from strop.support.garbage_collection import preload


def _outlive(number: int, frame: object) -> None:
    """The server outlives a signal to its whole process group: only it knows how runs end."""


# One to a copy waits until the copy can handle it. Threads of libraries that were imported before
# do not hold it back: the server gets it there.
signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
for _number in ENDING:
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _outlive)
preload(PRELOADED)
