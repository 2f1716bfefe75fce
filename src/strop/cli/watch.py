"""`strop watch`: the live report of running runs, in a browser on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.report import without_methods
from strop.cli.waiting import loading


def watch(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of this machine; 0: any free one.")
    ] = 0,
) -> None:
    """Show the report of runs in a browser on this machine, and keep it up to date.

    The page requests news from this command until every run is complete. Ctrl-C ends it; the runs
    continue.
    """
    loading(", ".join(map(str, runs)))
    from strop.report.watch import Watched, open_server
    from strop.support.stopping import explained

    ended = explained(lambda: "the page is no longer served, the runs continue")
    with ended, open_server(Watched(without_methods(runs)), port) as server:
        print(f"{server.url} (Ctrl-C ends this, not the runs)", flush=True)
        server.serve_forever()
