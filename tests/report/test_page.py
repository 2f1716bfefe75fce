"""The page as a whole: offline, escaped, and useful for partial runs."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from strop.report.html import plotly
from strop.report.page import write_report
from strop.support.errors import UserError

MakeRun = Callable[..., Path]
FETCHING = {"src", "href", "srcset", "data", "poster", "action", "background"}


class Elements(HTMLParser):
    """Collects what a browser would fetch, text outside scripts, and data blocks."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.policy = ""
        self.blocks: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self._inside: tuple[str, str] = ("", "")
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in FETCHING]
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"] or ""
        self._inside = (tag, named.get("type") or "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ("", "")

    def handle_data(self, data: str) -> None:
        if self._inside == ("script", "application/json"):
            self.blocks.append(data)
        elif self._inside[0] == "style":
            self.styles.append(data)
        elif self._inside[0] != "script":
            self.text += data


def page_of(runs: list[Path], out: Path) -> tuple[str, Elements]:
    page = write_report(runs, out).read_text(encoding="utf-8")
    return page, Elements(page)


def test_page_needs_no_network(make_run: MakeRun, tmp_path: Path) -> None:
    page, elements = page_of([make_run()], tmp_path / "new" / "report.html")
    assert elements.fetched == []
    assert {"link", "iframe", "object", "embed", "base", "img"}.isdisjoint(elements.tags)
    assert elements.policy.startswith("default-src 'none'")
    assert not re.search(r"https?:", elements.policy)
    assert len(elements.styles) == 1
    assert not re.search(r"@import|url\(|https?:", elements.styles[0])
    assert page.count(plotly()) == 1  # once, however many charts


def test_every_chart_has_its_place_and_data(make_run: MakeRun, tmp_path: Path) -> None:
    page, elements = page_of([make_run("a"), make_run("b")], tmp_path / "r.html")
    places = re.findall(r'data-figure="([^"]+)"', page)
    identifiers = re.findall(r'application/json" id="([^"]+)"', page)
    assert places == identifiers
    assert len(set(places)) == len(places) == len(elements.blocks) == page.count("<figure>")
    names = {trace["name"] for trace in json.loads(elements.blocks[0])["data"] if "name" in trace}
    assert {name.split(" ")[0] for name in names} == {"a", "b"}


def test_page_says_what_the_run_did(make_run: MakeRun, tmp_path: Path) -> None:
    _, elements = page_of([make_run("grpo_tiny", num_steps=40)], tmp_path / "r.html")
    assert "40 steps · 160,000 tokens · 1 min" in elements.text
    assert 'recipe = "grpo"' in elements.text
    assert "<answer>3 * 7</answer> & so on" in elements.text  # text again once it is parsed
    for title in ("Numbers", "Learning", "Stability", "Rollouts", "Settings"):
        assert title in elements.text


def test_markup_in_a_run_stays_text(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a & <b>", num_steps=2, config='x = "</pre><script>1</script>"\n')
    path = folder / "metrics.jsonl"
    evil = {"step": 3, "reward": 1, "eval/</script><img src=x>/pass@1": 0.5}
    path.write_text(path.read_text() + json.dumps(evil) + "\n")
    page, elements = page_of([folder], tmp_path / "r.html")
    assert "img" not in elements.tags
    assert elements.tags.count("script") == page.count("<figure>") + 2
    assert "a & <b>" in elements.text


def test_partial_runs_have_a_page_with_notes(make_run: MakeRun, tmp_path: Path) -> None:
    cut = make_run("cut", num_steps=1)
    path = cut / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "rew')
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "metrics.jsonl").write_text("")
    _, elements = page_of([cut, empty], tmp_path / "r.html")
    assert "cut: The last line of metrics.jsonl is cut off and was left out." in elements.text
    assert "empty: No step has been recorded yet." in elements.text
    assert "empty: There is no config.toml." in elements.text
    page_of([empty], tmp_path / "alone.html")


def test_runs_of_the_same_name_are_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("one/run", num_steps=1), make_run("two/run", num_steps=1)]
    _, elements = page_of(runs, tmp_path / "r.html")
    for folder in runs:
        assert str(folder) in elements.text


def test_report_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(UserError, match="not a run"):
        write_report([tmp_path], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_page_of_many_steps_is_small(make_run: MakeRun, tmp_path: Path) -> None:
    page, elements = page_of([make_run(num_steps=20_000)], tmp_path / "r.html")
    assert "20,000 steps" in elements.text
    assert len(page) < 2_000_000
    assert len(page) - len(plotly()) < 700_000


def test_the_header_says_what_was_trained(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(config='recipe = "grpo"\nseed = 5\n[model]\nname = "tiny"\n')
    page, _ = page_of([run], tmp_path / "r.html")
    header = page[page.index("<header>") : page.index("</header>")]
    for name, value in (("Recipe", "grpo"), ("Model", "tiny"), ("Trained", "40 steps")):
        assert f"<dt>{name}</dt><dd>{value}" in header
    assert "seed=5" in header
    sentence = "pass@1 on countdown rose from 30.0% to 60.0% (95% interval 54.0% to"
    assert sentence in header
    assert page.index('id="learning"') < page.index('id="numbers"')


def test_an_unwritable_page_is_said_in_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="could not be written"):
        write_report([make_run()], tmp_path / "file" / "report.html")
