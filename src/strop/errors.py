"""The two errors with a message meant for people instead of a traceback."""


class UserError(ValueError):
    """A mistake in what the user gave; the message says what, where and what to do.

    The command line prints the message on one line and exits with code 2, without a traceback.
    """


class RunStopped(RuntimeError):
    """A run cannot go on (full disk, gradient that is not finite); the last checkpoint is good.

    The command line prints the message and how to resume, and exits with code 1.
    """
