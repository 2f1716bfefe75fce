"""Every kind of page can be read, found and used by all: axe-core, tables on a phone, the search.

axe-core (MPL-2.0) comes from npm, into build/, when a test first needs it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from browser import left, needs_chromium
from docsite import source

AXE = "axe-core", "4.14.1"
KINDS = (
    "index.html", "docs/REWARDS.html", "families/baselines/index.html", "recipes/infopo.html",
    "parts/estimate_segment_advantage.html", "map.html#control", "house.html",
    "docs/notebooks/write_and_compare_a_method.html",
)  # fmt: skip
FIRST = {
    "resume a run": "docs/RUN_FOLDER.html",
    "learning rate": "docs/MODELS.html",
    "wandb": "docs/TRACKING.html",
    "my own reward": "docs/REWARDS.html",
    "grpo": "recipes/grpo.html",
    "subtract_group_mean": "parts/subtract_group_mean.html",
}

# The serious violations in a document, light or dark.
CHECK = """const check = async (inside, scheme) => {
  inside.head.insertAdjacentHTML("beforeend", "<style>* {transition: none !important}</style>");
  inside.body.setAttribute("data-md-color-scheme", scheme);
  await wait(500);
  const {violations} = await inside.defaultView.axe.run(
    inside, {resultTypes: ["violations"], iframes: false});
  return violations.flatMap((each) => each.nodes.map((node) => [each.id, node])).filter(
    ([_, node]) => ["serious", "critical"].includes(node.impact)).map(
    ([id, node]) => [scheme, id, node.html.slice(0, 160), node.failureSummary]);
};
"""
# A page in frames as wide as a screen, dark, and as a phone, light; words of tables in two lines.
FRAMES = (
    CHECK
    + """const found = {violations: [], broken: []};
for (const [width, scheme] of [[1300, "slate"], [390, "default"]]) {
  const frame = document.createElement("iframe");
  Object.assign(frame, {width, height: 900, src: %s});
  document.body.append(frame);
  await new Promise((done) => frame.addEventListener("load", done));
  const inside = frame.contentDocument;
  const axe = inside.createElement("script");
  axe.src = "/axe.min.js";
  inside.head.append(axe);
  await new Promise((done) => axe.addEventListener("load", done));
  found.violations.push(...await check(inside, scheme));
  for (const cell of inside.querySelectorAll("td, th")) {
    const words = inside.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (words.nextNode())
      for (const word of words.currentNode.data.matchAll(/\\w+/g)) {
        const range = inside.createRange();
        range.setStart(words.currentNode, word.index);
        range.setEnd(words.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1)
          found.broken.push(word[0]);
      }
  }
  frame.remove();
}
return found;"""
)
# The first results of the search, opened from disk, and its serious violations.
SEARCH = (
    CHECK
    + """const input = document.querySelector(".md-search__input");
const first = {};
input.focus();
await wait(1000);
for (const asked of %s) {
  input.value = asked;
  for (const kind of ["keyup", "input"]) input.dispatchEvent(new Event(kind));
  await wait(800);
  first[asked] = document.querySelector(".md-search-result__link").href;
}
const violations = await check(document, "default");
violations.push(...await check(document, "slate"));
return {first, violations};"""
)


@needs_chromium
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_no_serious_violation_and_no_table_breaks_a_word(
    kind: str, site: Path, served: str, tmp_path: Path
) -> None:
    shutil.copy(source.fetched(*AXE) / "axe.min.js", site)
    page = site / "frames.html"
    page.write_text("<body></body>")
    found = left(page, FRAMES % json.dumps(kind), tmp_path / "profile", at=served, seconds=60)
    assert found == {"violations": [], "broken": []}


@pytest.fixture(scope="module")
def searched(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    page = site / "search.html"
    axe = (source.fetched(*AXE) / "axe.min.js").as_uri()
    html = (site / "index.html").read_text(encoding="utf-8")
    page.write_text(html.replace("</head>", f'<script src="{axe}"></script></head>', 1))
    profile = tmp_path_factory.mktemp("profile")
    return left(page, SEARCH % json.dumps([*FIRST]), profile, seconds=60)


@needs_chromium
@pytest.mark.parametrize("asked", FIRST)
def test_the_search_finds_the_guide_first_and_a_name_its_page(
    asked: str, searched: dict[str, Any]
) -> None:
    assert FIRST[asked] in searched["first"][asked]


@needs_chromium
def test_the_open_search_has_no_serious_violation(searched: dict[str, Any]) -> None:
    assert searched["violations"] == []
