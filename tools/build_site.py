"""Build the documentation site, which opens from disk and from any static host.

    pip install -c constraints.txt -e '.[docs]'    # the generator; npm brings KaTeX, once
    python tools/build_site.py [--out site] [--serve]

The pages are those of docs/, and one for each recipe and part, which are written from the code into
build/site. A broken link and any other warning of the generator fail the build. With --serve the
built site is served on http://127.0.0.1:8000/ until Ctrl-C.
"""

import argparse
import functools
import http.server
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from docsite import source
from docsite.known import Known

ROOT = Path(__file__).parents[1]
SETTINGS = Path(__file__).parent / "docsite/mkdocs.yml"


def main(arguments: Sequence[str]) -> int:
    """Build, and serve with --serve; returns the exit code."""
    asking = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asking.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site")
    asking.add_argument("--serve", action="store_true", help="serve it on 127.0.0.1:8000")
    asked = asking.parse_args(arguments)
    code = build(asked.out.resolve())
    if asked.serve and not code:
        serve(asked.out.resolve())
    return code


def build(out: Path, folder: Path = ROOT / "build/site") -> int:
    """Write the pages into `folder` and the site into `out`; 1 where the generator warned."""
    try:
        from mkdocs.commands.build import build as generate
        from mkdocs.config import load_config
        from mkdocs.exceptions import Abort
    except ImportError:
        print("the site needs its generator: pip install -c constraints.txt -e '.[docs]'")
        return 1
    try:
        source.fetched(*source.KATEX)
    except (OSError, subprocess.CalledProcessError) as stopped:
        print(f"the site needs KaTeX from the npm registry: {stopped}")
        return 1
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    known = Known.make()
    nav = source.write(folder, known)
    print(known.said())
    config = load_config(str(SETTINGS), docs_dir=str(folder), site_dir=str(out), nav=nav)
    try:
        generate(config)
    except Abort as stopped:
        print(stopped)
        return 1
    print(f"wrote {out / 'index.html'}")
    return 0


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without logging requests."""

    def log_message(self, *_: object) -> None:
        pass


def serve(out: Path) -> None:
    """Serve a folder until Ctrl-C."""
    handler = functools.partial(Quiet, directory=out)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler) as server:
        print("http://127.0.0.1:8000/  (Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
