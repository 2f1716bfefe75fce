"""The imports of the server whose copies are commands and other processes of tests."""

from commands import PRELOADED

from strop.support.garbage_collection import preload

preload(PRELOADED)
