"""The one error that means: the user can mend this."""


class UserError(ValueError):
    """A mistake in what the user gave; the message says what, where and what to do.

    The command line prints the message on one line and exits with code 2, without a traceback.
    """
