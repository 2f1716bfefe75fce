"""The one module that the fork server of a comparison imports; its copies are the runs."""

from strop.comparison.child import PRELOADED
from strop.support.garbage_collection import preload

preload(PRELOADED)
