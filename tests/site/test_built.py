"""The built site in a browser, from disk: it is whole, and searched and read without a network."""

import re
from pathlib import Path

import build_site
import pytest
from browser import dom, needs_chromium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build_site.build(folder / "html", folder / "pages") == 0, "the generator warned"
    return folder / "html"


def test_nothing_is_asked_of_another_host(site: Path) -> None:
    asks = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src=["']?(?:https?:)?//|<link[^>]+rel=["']?"""
        r"""(?:stylesheet|preload|preconnect)[^>]+href=["']?(?:https?:)?//|url\(["']?https?:"""
    )
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not asks.search(path.read_text(encoding="utf-8")), path


@needs_chromium
def test_the_search_works_from_disk(site: Path, tmp_path: Path) -> None:
    shown = dom(f"{(site / 'index.html').as_uri()}?q=overlong", tmp_path / "profile")
    found = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', shown)
    assert any("docs/" in place for place in found), shown[-2000:]
