"""The command `strop`, which `python -m strop` is too."""

import sys

from strop.support.stopping import interrupting


def main() -> None:
    """Run the command line; a signal in the second in which it is loaded is told, as later."""
    try:
        with interrupting():
            from strop.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted: strop was stopped before it started", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":  # and not where a comparison's run begins with what this process has
    main()
