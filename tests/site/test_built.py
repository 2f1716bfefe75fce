"""The built site in a browser, from disk: it is whole, and searched and read without a network."""

import functools
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from browser import dom, left, needs_chromium
from docsite import hooks

# The requests of a page, and the height of its fractions.
LOOK = """await wait(500);
return {
  asked: performance.getEntriesByType("resource").map((each) => each.name),
  height: Math.max(0, ...[...document.querySelectorAll(".mfrac .vlist-t")].map(
    (each) => each.getBoundingClientRect().height)),
  %s
};"""


def look(page: Path, profile: Path, more: str = "", end: str = "", at: str = "") -> dict[str, Any]:
    """What LOOK found in a page, opened from disk or from the server `at`."""
    return left(page, LOOK % more, profile, end, at)


def test_nothing_is_asked_of_another_host_and_every_link_leads_somewhere(site: Path) -> None:
    asks = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src=["']?(?:https?:)?//|<link[^>]+rel=["']?"""
        r"""(?:stylesheet|preload|preconnect)[^>]+href=["']?(?:https?:)?//|url\(["']?https?:"""
    )
    there = functools.cache(Path.exists)
    pages = list(site.rglob("*.html"))
    for path in (*pages, *site.rglob("*.css")):
        assert not asks.search(path.read_text(encoding="utf-8")), path
    for path in pages:
        if path.name == "404.html":
            continue
        for link in set(
            re.findall(r'(?:href|src)="([^"#?:]+)["#?]', path.read_text(encoding="utf-8"))
        ):
            assert there((path.parent / unquote(link)).resolve()), (path, link)


def test_a_recipe_named_in_code_leads_to_its_page() -> None:
    html = "<p><code>gspo</code> <a><code>gspo</code></a> <code>gspo(x)</code></p>"
    html += "<h2><code>grpo</code></h2>"
    wanted = '<p><a class="named" href="../recipes/gspo.html"><code>gspo</code></a>'
    assert hooks.linked(html, "docs/A.html") == html.replace("<p><code>gspo</code>", wanted)
    assert hooks.linked("<code>gspo</code>", "recipes/gspo.html") == "<code>gspo</code>"


@needs_chromium
def test_the_search_finds_a_recipe_from_disk(site: Path, tmp_path: Path) -> None:
    shown = dom(f"{(site / 'index.html').as_uri()}?q=gspo", tmp_path / "profile")
    found = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', shown)
    assert found, "the search found nothing"
    assert "recipes/gspo.html" in found[0]  # before those whose names begin with it


@needs_chromium
def test_an_equation_is_typeset_in_the_bundled_font(site: Path, tmp_path: Path) -> None:
    fonts = 'fonts: [...document.fonts].filter((f) => f.status === "loaded").map((f) => f.family),'
    found = look(site / "recipes/grpo.html", tmp_path / "profile", more=fonts)
    assert found["height"] > 30  # a numerator above a denominator
    assert any("KaTeX_Main" in family for family in found["fonts"])
    assert not [place for place in found["asked"] if not place.startswith(("file:", "data:"))]


@needs_chromium
def test_katex_reads_every_equation(site: Path, tmp_path: Path) -> None:
    lines = [
        line
        for kind in ("recipes", "parts")
        for path in sorted((site / kind).glob("*.html"))
        for line in re.findall(r'<p [^>]*data-tex="[^"]*">', path.read_text(encoding="utf-8"))
    ]
    page = site / "equations.html"
    page.write_text(
        '<script src="assets/katex/katex.min.js"></script><body>' + "</p>".join(lines) + "</body>"
    )
    refused = """refused: [...document.querySelectorAll("[data-tex]")].filter((each) => {
      try { katex.renderToString(each.dataset.tex, {strict: "error"}); return false; }
      catch { return true; }}).map((each) => each.dataset.tex),
    number: document.querySelectorAll("[data-tex]").length,"""
    found = look(page, tmp_path / "profile", more=refused)
    page.unlink()
    assert found["number"] == len(lines) > 900
    assert found["refused"] == []


@needs_chromium
def test_a_page_asks_its_own_host_alone(site: Path, served: str, tmp_path: Path) -> None:
    asked = look(site / "index.html", tmp_path / "profile", at=served, end="?q=grpo")["asked"]
    assert [place for place in asked if not place.startswith((served, "data:"))] == []
    assert any(place.endswith("/assets/site.css") for place in asked)
    assert any("/search/" in place for place in asked)


@needs_chromium
def test_the_map_leads_to_pages_and_is_filtered_by_stage(site: Path, tmp_path: Path) -> None:
    seen = """links: [...document.querySelectorAll(".blocks a[href^=recipes]")].map((a) => a.href),
    shown: [...document.querySelectorAll(".blocks a[data-stages]:not(.dim)")].map(
      (a) => a.dataset.stages),"""
    found = look(site / "map.html", tmp_path / "profile", more=seen, end="#control")
    assert len(found["links"]) > 150
    assert 5 < len(found["shown"]) < 40
    assert all("control" in stages.split() for stages in found["shown"])


@needs_chromium
def test_the_atlas_is_sorted_and_filtered(site: Path, tmp_path: Path) -> None:
    seen = """...(() => {
    const table = document.querySelector("table.sortable");
    const rows = () => [...table.tBodies[0].rows];
    const gaps = () => rows().map((row) => parseFloat(row.cells[4].textContent));
    const heads = [...table.querySelectorAll("th button")];
    const head = heads.find((button) => button.textContent === "difference");
    head.click(); const falling = gaps(); head.click(); const rising = gaps();
    const choice = table.parentElement.querySelector("select");
    choice.value = "curation"; choice.dispatchEvent(new Event("change"));
    const kept = rows().filter((row) => !row.hidden).map((row) => row.cells[1].textContent);
    return {falling, rising, kept};
    })(),"""
    found = look(site / "docs/ATLAS.html", tmp_path / "profile", more=seen)
    assert found["falling"] == sorted(found["falling"], reverse=True)
    assert found["rising"] == sorted(found["rising"]) != found["falling"]
    assert found["kept"]
    assert all("curation" in stages for stages in found["kept"])


@needs_chromium
@pytest.mark.parametrize(
    "page",
    ["index", "map", "recipes/infopo", "parts/estimate_segment_advantage",
     "docs/notebooks/write_and_compare_a_method"],
)  # fmt: skip
def test_a_narrow_screen_is_wide_enough(page: str, site: Path, served: str, tmp_path: Path) -> None:
    # A headless window is at least 500 wide, so the page is looked at in a frame of 390, which may
    # be looked into where both come from a server.
    frame = site / "frame.html"
    frame.write_text(f'<iframe id="f" src="{page}.html" width="390" height="800"></iframe></body>')
    inside = """inside: ["scrollWidth", "clientWidth"].map(
      (name) => document.getElementById("f").contentDocument.documentElement[name]),"""
    found = look(frame, tmp_path / "profile", more=inside, at=served)
    content, screen = found["inside"]
    assert 370 <= screen <= 390  # with room for a bar to scroll by
    assert content <= screen
