"""The documentation site. Tests that need its generator are collected if it can be imported.

pip install -e '.[docs]' && pytest -n 0 tests/site
"""

import functools
import http.server
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import build_site
from docsite.known import Known

collect_ignore = (
    ["test_built.py", "test_reached.py"] if importlib.util.find_spec("material") is None else []
)


@pytest.fixture(scope="session")
def known() -> Known:
    return Known.make()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build_site.build(folder / "html", folder / "pages") == 0, "the generator warned"
    return folder / "html"


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    handler = functools.partial(build_site.Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()
