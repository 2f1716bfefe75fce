"""The watched page in a browser: new data come, zoom and choices stay."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import dom, needs_chromium

from strop.report import watch
from strop.report.page import write_report

MakeRun = Callable[..., Path]
CONFIG = 'recipe = "grpo"\n[training]\nsteps = 40\n'
# The user's actions once the page is loaded, and the final state of the page.
HANDS = """<script>
addEventListener("load", () => {
  document.querySelectorAll(".steps button")[1].click();
  document.querySelector("#settings details").open = true;
  const area = document.querySelector(".plot .nsewdrag");
  const { left, top, width, height } = area.getBoundingClientRect();
  const mouse = (type, on, x) => on.dispatchEvent(new MouseEvent(type, {
    bubbles: true, cancelable: true, view: window, button: 0, buttons: 1,
    clientX: left + x * width, clientY: top + height / 2,
  }));
  mouse("mousedown", area, 0.2);
  mouse("mousemove", document, 0.4);
  mouse("mousemove", document, 0.6);
  mouse("mouseup", document, 0.6);
});
const ranges = {}; // number of steps -> where the chart was zoomed to
setInterval(() => {
  const plot = document.querySelector(".plot");
  ranges[plot.data[0].x.length] = plot.layout.xaxis.range;
  document.body.dataset.seen = JSON.stringify({
    steps: plot.data[0].x.length,
    ranges,
    pressed: [...document.querySelectorAll('[aria-pressed="true"]')].map((b) => b.textContent),
    shown: [...document.querySelectorAll(".of-step")].filter((e) => !e.hidden).length,
    open: document.querySelectorAll("#settings details[open]").length,
    buttons: document.querySelectorAll(".steps button").length,
    order: [...document.querySelectorAll("main > section")].map((e) => e.id),
    text: document.querySelector(".state").textContent,
  });
}, 500);
</script></body>"""


@needs_chromium
def test_new_steps_come_and_zoom_and_choices_stay(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(num_steps=6, config=CONFIG)
    real = watch.document
    monkeypatch.setattr(watch, "document", lambda *a, **k: real(*a, **k).replace("</body>", HANDS))
    monkeypatch.setattr(watch, "LATE", 1.0)  # as if it was training
    looks: list[dict[str, Any]] = []

    class Growing(watch.Watched):
        def look(self) -> dict[str, Any]:
            if len(looks) == 2:  # the page was there, and has asked once
                row = {"step": 7, "reward": 0.5, "sampling/age_steps": 1, "perf/peak_mem_gb": 2}
                with (folder / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({**row, "num_rollouts": 8}) + "\n")
                rows = pa.Table.from_pylist([{"reward": 1.0, "completion": "of seven"}])
                pq.write_table(rows, folder / "rollouts/step_7.parquet")
            found = super().look()
            looks.append(dict(found))
            return found

    with watch.open_server(Growing([folder]), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            html = dom(server.url, tmp_path / "profile")
        finally:
            server.shutdown()
            thread.join()
    assert len(looks) >= 3
    seen = json.loads(re.search(r'data-seen="([^"]*)"', html)[1].replace("&quot;", '"'))
    assert seen["steps"] == 7
    assert seen["text"] == "stopped after step 7 of 40"
    assert set(seen["ranges"]) == {"6", "7"}
    assert seen["ranges"]["7"] == seen["ranges"]["6"]
    assert seen["ranges"]["7"][1] - seen["ranges"]["7"][0] < 3  # zoomed: six steps are there
    assert (seen["pressed"], seen["shown"], seen["buttons"]) == (["2"], 1, 7)
    assert seen["open"] == 1
    assert seen["order"] == list(looks[-1]["parts"])[1:]
    assert 'class="note lost"' not in html


@needs_chromium
def test_the_written_page_draws_and_chooses_rollouts(make_run: MakeRun, tmp_path: Path) -> None:
    page = write_report([make_run("a"), make_run("b")], tmp_path / "r.html")
    hands = """<script>addEventListener("load", () => {
      const select = document.querySelector(".browser select");
      select.selectedIndex = 1;
      select.dispatchEvent(new Event("change", { bubbles: true }));
      document.querySelectorAll(".of-run")[1].querySelector("button").click();
      const shown = [...document.querySelectorAll(".of-step")].map((e) => e.offsetParent !== null);
      document.body.dataset.seen = JSON.stringify([shown.indexOf(true), shown.lastIndexOf(true)]);
    });</script></body>"""
    page.write_text(page.read_text().replace("</body>", hands))
    html = dom(page.as_uri(), tmp_path / "profile", seconds=3)
    assert 'data-seen="[12,12]"' in html  # the first step of the second run, alone
    assert "js-plotly-plot" in html
