"""`python -m strop` is the command `strop`."""

from strop.cli.main import main

if __name__ == "__main__":  # and not where a comparison's run begins with what this process has
    main()
