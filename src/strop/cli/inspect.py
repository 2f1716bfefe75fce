"""`strop inspect`: a page to look into a step, token by token."""

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.waiting import loading


def inspect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    step: Annotated[
        int | None, typer.Option("--step", help="Step; default: the last one that was saved.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the page to this file; no serving.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of this machine; 0: any free one.")
    ] = 0,
) -> None:
    """Look into a step: every token with its advantage, ratio, gate and weight.

    Serves a page on this machine until Ctrl-C, or writes it as one file that opens without a
    network. A run saves tokens every training.rollouts_every steps, of training.inspect rollouts.
    """
    loading(str(run))
    from strop.inspection.page import open_server, write_page
    from strop.support.stopping import explained

    if out is not None:
        number = write_page(run, step, out)
        print(f"wrote {out}, step {number}")
        return
    ended = explained(lambda: "the page is no longer served")
    with ended, open_server(run, step, port) as server:
        print(f"{server.url} (Ctrl-C ends this)", flush=True)
        server.serve_forever()
