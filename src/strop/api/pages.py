"""Pages of runs: a step token by token, and the live report of running runs."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from strop.api.arguments import checked
from strop.api.folders import HasFolder, folders_of, path_of
from strop.api.messages import messages_in_python
from strop.inspection.page import write_page
from strop.report.local_server import LocalServer
from strop.report.watch import Watched, open_server
from strop.support.errors import UserError

HEIGHT = 760  # pixels of a page in a notebook


@dataclass(frozen=True)
class Page:
    """A page in a file, which a notebook shows; step: the run's step on it."""

    path: Path
    step: int

    def _repr_html_(self) -> str:
        text = escape(self.path.read_text(encoding="utf-8"))
        frame = f'style="width: 100%; height: {HEIGHT}px; border: 0" sandbox="allow-scripts"'
        return f'<iframe srcdoc="{text}" {frame}></iframe>'


@checked
def inspect(
    run: HasFolder | str | Path, step: int | None = None, out: str | Path | None = None
) -> Page:
    """Write the page that shows a step token by token: advantage, ratio, gate, weight.

    run: a run or its folder. step: by default the last saved one. out: the file, by default
    `inspect.html` in the run's folder. Raises UserError.
    """
    folders = folders_of(run)
    if len(folders) != 1:
        raise UserError(f"run names {len(folders)} runs: give one run, or its folder")
    (folder,) = folders
    place = folder / "inspect.html" if out is None else path_of(out, "out")
    with messages_in_python():
        return Page(place, write_page(folder, step, place))


class Watching:
    """Serves the report of runs on this machine, at `url`, until `close` or the end."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the page."""
        return self._server.url

    def close(self) -> None:
        """Stop serving the page."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "Watching":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Watching({self.url})"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank">{self.url}</a>'


@checked
def watch(
    runs: HasFolder | str | Path | Sequence[HasFolder | str | Path], port: int = 0
) -> Watching:
    """Serve the report of runs on this machine, kept up to date while they train.

    runs: a run, its folder, or a list of these. port: 0: any free one. Raises UserError.
    """
    with messages_in_python():
        return Watching(open_server(Watched(folders_of(runs)), port))
