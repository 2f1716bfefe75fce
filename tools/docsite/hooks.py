"""Hooks of the generator: recipes and parts that are named in code become links."""

import functools
import re
from typing import Any

from mkdocs.utils import get_relative_url

from strop.catalogue import catalogue

# Its names are those of other libraries.
LEFT = ("docs/COMING_FROM_TRL_AND_VERL.md",)
CLOSED = ("a", "pre", "h1", "h2", "h3", "h4", "svg")  # nothing inside of these becomes a link


@functools.cache
def places() -> dict[str, str]:
    """The page of each recipe and part."""
    parts = {entry.name: f"parts/{entry.name}.html" for entry in catalogue.parts()}
    return parts | {entry.name: f"recipes/{entry.name}.html" for entry in catalogue.recipes()}


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The page with these links; a bar that was escaped in a Markdown table becomes plain again."""
    html = re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)
    if page.url in places().values():  # a name in a title may break at its underscores
        html = re.sub(r"(<h1[^>]*>)(\w+)", lambda h: h[1] + h[2].replace("_", "_<wbr>"), html)
    html = re.sub(r"<!-- sortable -->\s*<table>", '<table class="sortable">', html)
    html = html if page.file.src_uri in LEFT else linked(html, page.url)
    return re.sub(r"<t[dh]\b.*?</t[dh]>", breakable, html, flags=re.S)


def on_post_page(output: str, **_: Any) -> str:
    """The page with a name for the search dialog, which the theme leaves without one."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def breakable(cell: re.Match[str]) -> str:
    """A table's cell with the places where code may break: between words, never inside one."""
    between = functools.partial(re.sub, r"([_.,=(/])(?=[A-Za-z])", r"\1<wbr>")
    return re.sub(r"<code>[^<]*</code>", lambda code: between(code[0]), cell[0])


def linked(html: str, here: str) -> str:
    """HTML with a link around every `<code>` that names a recipe or part other than the page's."""
    found, depth = [], 0
    for piece in re.split(r"(<code>\w+</code>|<[^>]+>)", html):
        named = re.fullmatch(r"<code>(\w+)</code>", piece)
        place = places().get(named[1]) if named and not depth else None
        if place and place != here:
            words = piece.replace("_", "_<wbr>")  # where a line may end
            piece = f'<a class="named" href="{get_relative_url(place, here)}">{words}</a>'
        tag = re.match(r"<(/?)(\w+)[^>]*?(/?)>", piece)
        if tag and tag[2] in CLOSED and not tag[3] and not (place and named):
            depth += -1 if tag[1] else 1
        found.append(piece)
    return "".join(found)
