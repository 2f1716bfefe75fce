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
