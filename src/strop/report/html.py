"""Frames every page that strop writes: one file that opens without a network."""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from strop.report.charts import Chart
from strop.support.files import without_nan

# With this policy, the browser refuses anything from outside the page.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


def document(title: str, body: str, *, served: str = "") -> str:
    """A whole page: `body` holds a header and sections.

    served: the script (a file of this folder) of a page that a server keeps up to date; the page
    may then request data from that server, and from nowhere else.
    """
    policy = f"{POLICY}; connect-src 'self'" if served else POLICY
    more = f"<script>{_asset(served)}</script>\n" if served else ""
    scripts = f"<script>{plotly()}</script>\n<script>{_asset('page.js')}</script>\n{more}"
    return frame(title, _asset("page.css"), body + scripts, policy)


def frame(title: str, style: str, body: str, policy: str = POLICY) -> str:
    """The frame of a whole page. body: with its scripts."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"{body}</body>\n</html>\n"
    )


def plotly() -> str:
    """The source of plotly.js: its bundle of lines, bars and pies (MIT licence)."""
    folder = resources.files("strop.assets").joinpath("plotly")
    return folder.joinpath("plotly-basic.min.js").read_text(encoding="utf-8")


def _asset(name: str) -> str:
    return resources.files("strop.report").joinpath(name).read_text(encoding="utf-8")


def section(title: str, content: str) -> str:
    """A titled section; empty when there is no content."""
    if not content:
        return ""
    return f'<section id="{slug(title)}">\n<h2>{escape(title)}</h2>\n{content}\n</section>\n'


def slug(title: str) -> str:
    """A title as an anchor on the page: only letters, digits and dashes."""
    return re.sub(r"\W+", "-", title.lower())


def charts_grid(charts: Sequence[Chart], name: str) -> str:
    """Charts side by side; `name` keeps their ids unique on the page."""
    figures = []
    for index, chart in enumerate(charts):
        place = f"{slug(name)}-{index}"
        figure = json.dumps(without_nan({"data": chart.data, "layout": chart.layout}))
        figure = figure.replace("<", "\\u003c")  # inside a data block it could end it
        tall = f' style="height: {chart.height}px"' if chart.height else ""
        figures.append(
            f"<figure>\n<figcaption><h3>{escape(chart.title)}</h3><p>{escape(chart.caption)}</p>"
            f'</figcaption>\n<div class="plot" data-figure="{place}"{tall}></div>\n'
            f'<script type="application/json" id="{place}">{figure}</script>\n</figure>\n'
        )
    return f'<div class="grid">\n{"".join(figures)}</div>' if figures else ""


def table(css: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain-text rows under plain headings; a row's first cell is its heading."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    return framed(css, f"<tr>{cells}</tr>", rows)


def framed(css: str, head: str, rows: Iterable[Sequence[str]]) -> str:
    """As `table`, but the head is HTML."""
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    wrapped = f'<table class="{css}"><thead>{head}</thead><tbody>{body}</tbody></table>'
    return f'<div class="wide" tabindex="0">{wrapped}</div>'
