"""The page as a file: whole, without a network, and no text of the run is read as markup."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib import resources

import pytest

from strop.inspection.page import SCRIPTS, page_of, write_page
from strop.report.html import POLICY
from strop.support.errors import UserError

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&amp;"


class Seen(HTMLParser):
    """The elements of a page, and the text of its data."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.data, self.inside = [], [], "", False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.inside = ("id", "data") in attrs

    def handle_data(self, data):
        if self.inside:
            self.data += data


def parsed(page):
    seen = Seen()
    seen.feed(page)
    return seen


def test_the_page_loads_nothing_and_says_so_to_the_browser(make_step, tmp_path):
    folder = make_step()
    assert write_page(folder, None, tmp_path / "deep" / "page.html") == 3
    page = (tmp_path / "deep" / "page.html").read_text()
    seen = parsed(page)
    assert ("meta", "content", POLICY) in seen.attributes
    assert not [a for a in seen.attributes if a[1] in ("src", "href") or a[1].startswith("on")]
    code = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)
    assert set(re.findall(r"https?://[^\"'\s]+", code)) == {"http://www.w3.org/2000/svg"}
    for word in ("fetch(", "XMLHttpRequest", "import(", "innerHTML", "insertAdjacent", "eval("):
        assert word not in code


def test_texts_of_a_run_are_never_markup(make_step):
    texts = (NASTY, *"0123456789", "\u2028", "\x00")
    changed = {"prompt": [NASTY] * 8, "reward/right": [NASTY] * 8}
    folder = make_step(texts=texts, rollouts=changed)
    (folder / "config.toml").write_text(f"recipe = '''{NASTY}'''\n")
    seen = parsed(page_of(folder, 3))
    assert seen.tags.count("script") == 2
    assert "img" not in seen.tags
    told = json.loads(seen.data)
    assert NASTY in told["texts"]
    assert told["prompts"][0] == NASTY
    assert told["facts"][0] == ["Recipe", NASTY]


def test_the_page_of_a_server_can_go_to_every_step(make_step):
    folder = make_step(steps=(3, 6, 9))
    assert json.loads(parsed(page_of(folder, None)).data)["steps"] == [3, 6, 9]
    assert json.loads(parsed(page_of(folder, 6)).data)["step"] == 6


def test_an_unwritable_place_is_told(make_step, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"page.html could not be written"):
        write_page(make_step(), 3, tmp_path / "file" / "page.html")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_read_by_a_parser(name, tmp_path):
    """By node where there is one; without, brackets and quotes are at least counted."""
    text = resources.files("strop.inspection").joinpath("page", name).read_text()
    assert len(text.splitlines()) <= 400
    if (node := shutil.which("node")) is None:
        assert [text.count(a) - text.count(b) for a, b in ("{}", "()", "[]")] == [0, 0, 0]
        return
    (tmp_path / name).write_text(text)
    ran = subprocess.run([node, "--check", tmp_path / name], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()


PRODUCT = """
const code = require("fs").readFileSync(process.argv[2], "utf8");
const columns = JSON.parse(process.argv[3]);
const inside = code + "; line = (name, value) => [name, Number(value.toFixed(4))]; return product;";
const at = (name) => (columns[name] ? columns[name][0] ?? NaN : undefined);
console.log(JSON.stringify(new Function("columns", inside)(columns)(at)));
"""


@pytest.mark.parametrize(
    ("terms", "coef", "gate", "shown"),
    [
        ({}, None, 1.0, {"= weight": 1.0}),
        ({}, 0.25, 1.0, {"× coefficient": 0.25, "= weight": 0.25}),
        (
            {"weight/policy": [0.25], "weight/penalty": [0.45]}, 0.25, 1.0,
            {"× coefficient": 0.25, "= weight of its term": 0.25, "+ other terms": 0.45,
             "= weight": 0.7},
        ),
        ({"weight/policy": [0.0], "weight/penalty": [0.45]}, None, None,
         {"weight of all terms": 0.45}),
    ],
)  # fmt: skip
def test_what_the_panel_multiplies_is_the_weight(terms, coef, gate, shown, tmp_path):
    if (node := shutil.which("node")) is None:
        pytest.skip("no node on PATH: the panel's numbers are not tested")
    (weight,) = list(shown.values())[-1:]
    columns = {"advantage_T": [2.0], "log_ratio_T": [0.0], "share_T": [0.5], "gate_T": [gate],
               "weight_T": [weight], "clipped_T": [0], "updates_T": [1], "last_log_ratio_T": [0.0],
               **({} if coef is None else {"coef_T": [coef]}), **terms}  # fmt: skip
    (tmp_path / "product.js").write_text(PRODUCT)
    panel = resources.files("strop.inspection").joinpath("page", "panel.js")
    words = [node, tmp_path / "product.js", str(panel), json.dumps(columns)]
    ran = subprocess.run(words, capture_output=True, check=True, text=True)
    found = dict(json.loads(ran.stdout))
    factors = ("advantage", "× ratio", "× gate", "× share", "updates", "last ratio")
    assert {name: value for name, value in found.items() if name not in factors} == shown
