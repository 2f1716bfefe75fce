"""The one module that the fork server of a comparison imports; its copies are the runs."""

import signal

from strop.comparison.child import ENDING, PRELOADED
from strop.support.garbage_collection import preload

# The server outlives a signal to its whole process group, since only it knows how runs end. One to
# a copy waits until the copy can handle it.
signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
preload(PRELOADED)
