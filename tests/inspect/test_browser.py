"""The page in a headless Chromium: clicks, keys, filters; only elements near the view are drawn.

Without a browser its scripts are only parsed (test_inspect_page.py).
"""

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import act, needs_chromium
from made_steps import lists

from strop.inspection.page import write_page

pytestmark = needs_chromium


@pytest.fixture
def page(make_step, tmp_path):
    """page(num, ...) writes the page of a made-up step."""

    def write(**given):
        write_page(make_step(**given), None, tmp_path / "page.html")
        return tmp_path / "page.html"

    return write


def test_a_click_shows_where_a_weight_comes_from(page):
    found = act(
        page(),
        """
        found.title = text("h1"); found.groups = all("#groups button").length;
        found.shades = all("#shade option").map((o) => o.value);
        const spans = all("article .t");
        found.answer = spans.slice(0, 10).map((s) => s.textContent).join("");
        spans[5].click();
        found.head = text(".token-head"); found.panel = text("#panel");
        press("ArrowRight"); found.next = text("#panel .soft");
        press("ArrowLeft", {shiftKey: true}); found.first = text("#panel .soft");
        found.up = spans[0].style.background;
        found.down = all("article")[1].querySelector(".t").style.background;
        """,
    )
    assert found["errors"] == []
    assert found["title"] == "run, step 3"
    assert found["groups"] == 2
    assert found["shades"][:2] == ["weight_T", "advantage_T"]
    assert found["answer"].startswith("2345")  # the prompt's two tokens stand with the group
    assert len(found["answer"]) == 10
    assert found["head"] == found["answer"][5]
    plain = found["panel"].replace("\u200b", "")
    for part in ("reward1", "subtract_group_mean0.5", "spread_evenly1", "× gate1", "= weight"):
        assert part in plain
    assert "pushed up" in plain
    assert "clipped in 1" in plain  # the seventh token after the prompt's two
    assert found["next"].startswith("token 7 of 10, rollout 0")
    assert found["first"].startswith("token 1 of 10")
    assert found["up"].startswith("rgba(31, 111, 235")
    assert found["down"].startswith("rgba(217, 95, 2")


def test_filters_leave_what_has_such_tokens(page):
    marks = [0] * 96
    marks[12 * 2 + 5] = 1
    found = act(
        page(tokens={"clipped_T": lists(pa.array(marks, pa.int32()), 12)}),
        """
        press("c"); found.clipped = text("#count");
        await wait(200); found.hits = all(".t.hit").length;
        found.which = all("article").map((a) => a.dataset.rollout);
        press("c"); found.all = text("#count");
        all("[data-mark=conflicting]")[0].click(); found.conflicting = text("#count");
        press("o");
        press("/"); found.focus = document.activeElement.id;
        const box = document.querySelector("#search");
        box.value = "no such text"; box.dispatchEvent(new Event("input")); await wait(400);
        found.none = text("#count");
        box.dispatchEvent(new KeyboardEvent("keydown", {key: "j", bubbles: true}));
        found.typed = document.activeElement.id;
        press("Escape"); found.left = document.activeElement.tagName;
        press("?"); found.keys = document.querySelector("#keys").open;
        """,
    )
    assert found["errors"] == []
    assert found["clipped"] == "1 of 8 rollouts, 1 tokens clipped"
    assert found["hits"] == 1
    assert found["which"] == ["2"]
    assert found["all"] == "8 of 8 rollouts"
    assert found["conflicting"] == "8 of 8 rollouts, 32 tokens conflicting"  # four each, both signs
    assert found["focus"] == found["typed"] == "search"
    assert found["none"] == "0 of 8 rollouts"
    assert found["left"] == "BODY"
    assert found["keys"] is True


def test_keys_walk_and_two_rollouts_stand_side_by_side(page):
    found = act(
        page(size=30),
        """
        const here = () => document.activeElement.dataset.rollout;
        found.walk = [];
        for (const key of ["j", "j", "j", "k", "n", "p", "n", "j"]) {
          press(key);
          found.walk.push(here());
        }
        press("s"); found.pressed = document.activeElement.querySelector("button").ariaPressed;
        press("j"); press("s");
        found.beside = text("#beside h2"); found.common = text("#beside .common .tokens");
        found.sides = all("#beside .both .tokens").map((box) => box.textContent.length);
        found.hidden = document.querySelector("#list").hidden;
        all("#beside .t")[6].click(); found.token = text("#panel .soft");
        document.querySelector("#shade").value = "clipped_T";
        document.querySelector("#shade").dispatchEvent(new Event("change"));
        found.legend = text("#legend");
        press("Escape");
        found.after = [all("#beside").length, document.querySelector("#list").hidden];
        """,
    )
    assert found["errors"] == []
    assert found["walk"] == ["0", "1", "2", "1", "4", "0", "4", "5"]
    assert found["pressed"] == "true"
    assert found["beside"] == "#5 beside #6"
    assert len(found["common"]) >= 4
    assert found["sides"] == [28 - len(found["common"])] * 2
    assert found["hidden"] is True
    assert "rollout 5" in found["token"]
    assert "never (" in found["legend"]
    assert "in 1 update (" in found["legend"]
    assert found["after"] == [0, False]


def test_trees_and_conversations_are_drawn(page):
    turns = np.tile(np.repeat([0, 1], 6), 8).astype(np.int32)
    mask = np.tile([False, False, True, True, True, True] * 2, 8)
    tokens = {
        "parent_B": np.array([-1, 0, 0, 2, -1, -1, -1, -1]),
        "fork_at_B": np.array([-1, 4, 2, 6, -1, -1, -1, -1]),
        "turn_T": lists(turns, 12), "mask_T": lists(mask, 12),
        "reward_K": lists(np.tile([0.0, 0.5], 8), 2),
        "valid_K": lists(np.tile([True, False], 8), 2),
    }  # fmt: skip
    found = act(
        page(tokens=tokens),
        """
        found.trees = all("svg.tree").length; found.branches = all("svg.tree .branch").length;
        found.rises = all("svg.tree .rise").length;
        found.pieces = all("svg.tree .branch").map((b) => b.querySelectorAll("path").length);
        found.told = all("svg.tree .branch")[0].querySelector("title").textContent;
        found.written = all("svg.tree .branch")[0].querySelector("g text").textContent;
        all("svg.tree .branch")[3].dispatchEvent(new MouseEvent("click", {bubbles: true}));
        found.gone = document.activeElement.dataset.rollout;
        const card = all("article")[0];
        found.said = [...card.querySelectorAll(".said small")].map((s) => s.textContent);
        found.given = [...card.querySelectorAll(".given small")].map((s) => s.textContent);
        """,
        "390,844",
    )
    assert found["errors"] == []
    assert found["trees"] == 1
    assert found["branches"] == 4
    assert found["rises"] == 4  # of the prompt, and of each that left another
    assert found["pieces"] == [3, 1, 2, 1]  # 0 is cut where 1 and 2 leave it, 2 where 3 does
    assert found["told"] == "#0, tokens 1 to 2: mean advantage 1, reward 1"
    assert found["written"] == "23"
    assert found["gone"] == "3"
    assert found["said"] == [
        "turn 1 · reward 0 · advantage 1", "turn 2 · reward 0.5 · not understood · advantage 1",
    ]  # fmt: skip
    assert found["given"] == ["environment"]


def test_a_context_of_its_own_is_told(page):
    mask = np.tile([False, False, True, True, True, True] * 2, 8)
    turns = np.tile(np.repeat([0, 1], 6), 8).astype(np.int32)
    tokens = {
        "turn_T": lists(turns, 12), "mask_T": lists(mask, 12), "sequence_T": lists(turns, 12),
        "reward_K": lists(np.tile([0.0, 0.5], 8), 2),
        "valid_K": lists(np.tile([True, False], 8), 2),
    }  # fmt: skip
    calls = [{"name": "price", "status": "ok"}, {"name": "", "status": "invalid_json"}]
    said = json.dumps([{"calls": calls[:1]}, {"calls": calls}])
    found = act(
        page(tokens=tokens, rollouts={"turns": [said] * 8}),
        """
        const card = all("article")[0];
        found.given = [...card.querySelectorAll(".given small")].map((s) => s.textContent);
        found.said = [...card.querySelectorAll(".said small")].map((s) => s.textContent);
        """,
        "390,844",
    )
    assert found["errors"] == []
    assert found["given"] == ["a new context"]
    assert found["said"][0].startswith("turn 1 · reward 0 · advantage")
    assert found["said"][1].startswith("turn 2 · reward 0.5 · a call: invalid_json · advantage")


def test_edges_hang_below_the_text_that_is_their_context(page):
    ids, mask = np.tile(np.arange(12, dtype=np.int32), 8), np.ones((8, 12), bool)
    mask[:, :2] = False
    mask[2, :8] = False  # after eight tokens of no one's: it hangs nowhere
    short = {"id_T": lists(ids, 12), "mask_T": lists(mask.flatten(), 12)}
    found = act(
        page(tokens=short),
        """
        found.trees = all("svg.tree").length;
        const shown = all("article")[2].querySelector(".tokens");
        found.flow = [...shown.children].map((box) => [box.className, box.textContent.length]);
        found.head = all("article")[2].querySelector(".head").textContent;
        """,
    )
    assert found["errors"] == []
    assert found["trees"] == 0
    assert found["flow"] == [["flow given", 6], ["flow said", 4]]
    assert "4 tokens" in found["head"]


def test_edges_of_a_tree_are_drawn_as_one(make_step, tmp_path):
    """Rollouts 4, 6, 8, 6 tokens long; the first two are given, then what is above each edge."""
    sizes, own = [4, 6, 8, 6], [2, 4, 6, 4]
    ends = np.cumsum([0, *sizes])
    ids = np.concatenate([np.arange(n) for n in sizes]).astype(np.int32)
    ids[ends[3] + 4 :] = 9  # another way on
    mask = np.concatenate([np.arange(n) >= k for n, k in zip(sizes, own, strict=True)])
    folder = make_step(num=4)
    path = folder / "tokens/step-000003.parquet"
    columns = pq.read_table(path).to_pydict()
    flat = {name: np.concatenate(cells)[: ends[-1]] for name, cells in columns.items()
            if isinstance(cells[0], list) and name not in ("id_T", "mask_T")}  # fmt: skip
    for name, values in {**flat, "id_T": ids, "mask_T": mask}.items():
        columns[name] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values))
    pq.write_table(pa.table(columns), path)
    write_page(folder, None, tmp_path / "page.html")
    found = act(
        tmp_path / "page.html",
        """
        found.branches = all("svg.tree .branch").map((b) => b.dataset.goto);
        found.rises = all("svg.tree .rise").length;
        found.heads = all("article .head .soft").map((s) => s.textContent.match(/from #.*? ·/));
        """,
    )
    assert found["errors"] == []
    assert found["branches"] == ["0", "1", "2", "3"]
    assert found["rises"] == 4
    assert found["heads"] == [
        None, ["from #0 at token 3 ·"], ["from #1 at token 5 ·"], ["from #0 at token 3 ·"],
    ]  # fmt: skip


def test_a_thousand_rollouts_of_a_thousand_tokens(page):
    texts = tuple(f" w{n}" for n in range(300))
    started = time.process_time()
    path = page(num=1024, size=1000, group=16, texts=texts)
    assert time.process_time() - started < 30
    assert path.stat().st_size < 40e6
    found = act(
        path,
        """
        found.cards = all("article").length; found.spans = [all(".t").length];
        scrollTo(0, document.body.scrollHeight / 2); await wait(300);
        found.spans.push(all(".t").length);
        press("c"); await wait(300); found.spans.push(all(".t").length);
        press("n"); press("n"); press("j"); found.at = document.activeElement.dataset.rollout;
        const box = document.body.getBoundingClientRect();
        found.wide = document.documentElement.scrollWidth <= innerWidth;
        """,
    )
    assert found["errors"] == []
    assert found["cards"] == 1024
    assert all(0 < n <= 8 * 998 for n in found["spans"])  # of a million
    assert found["at"] == "17"
    assert found["wide"]
