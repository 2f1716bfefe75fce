"""A headless Chromium for tests of pages: from the environment variable CHROMIUM, or on PATH.

Without one those tests are skipped with a message, unless STROP_BROWSER=require.
"""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
needs_chromium = pytest.mark.skipif(
    not CHROMIUM and os.environ.get("STROP_BROWSER") != "require",
    reason="no chromium on PATH or in CHROMIUM: what the page does is not tested",
)


def dom(url: str, folder: Path, seconds: int = 10, size: str = "1280,2400") -> str:
    """The page's elements after so many seconds of its own time; `folder`: for the profile."""
    assert CHROMIUM, "no chromium: install one, or set CHROMIUM to its program"
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}",
        "--blink-settings=primaryHoverType=2,availableHoverTypes=2",  # as with a mouse
        f"--user-data-dir={folder}", f"--virtual-time-budget={1000 * seconds}", "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Writes the return value of an async function's body where --dump-dom shows it.
LEAVING = """<script>addEventListener("load", async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const box = document.createElement("pre");
  box.id = "found";
  try { box.textContent = JSON.stringify(await (async () => { %s })()); }
  catch (error) { box.textContent = JSON.stringify({error: error.stack}); }
  document.body.append(box);
});</script></body>"""


def left(
    page: Path, script: str, profile: Path, end: str = "", at: str = "", seconds: int = 5
) -> Any:
    """What a script returns in a page that is opened from disk or, `at`, from a server."""
    acted = page.with_name(f"acted_{page.name}")
    acted.write_text(page.read_text().replace("</body>", LEAVING.replace("%s", script)))
    shown = dom((at + acted.name if at else acted.as_uri()) + end, profile, seconds, "1400,1200")
    acted.unlink()
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.S)
    return json.loads(unescape(found))


# Waits for the page, acts on it as a user does, and writes its results where --dump-dom shows them.
ACTING = """
<script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const keyed = (key, options) => new KeyboardEvent("keydown", {key, bubbles: true, ...options});
const press = (key, options = {}) => document.activeElement.dispatchEvent(keyed(key, options));
const all = (query) => [...document.querySelectorAll(query)];
const text = (query) => (document.querySelector(query) || {textContent: null}).textContent;
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
(async () => {
  const begun = performance.now();
  while (!document.body.dataset.ready && !errors.length) await wait(20);
  const found = {ready: performance.now() - begun};
  try { %s } catch (error) { errors.push(error.stack); }
  found.errors = errors;
  const box = document.createElement("pre");
  box.id = "found";
  box.textContent = JSON.stringify(found);
  document.body.append(box);
})();
</script>
"""


def act(page: Path, script: str, size: str = "1280,900") -> dict[str, Any]:
    """What the script found in the page: it runs there once the step is unpacked."""
    acted = page.with_name("acted.html")
    acted.write_text(page.read_text().replace("</body>", ACTING % script + "</body>"))
    shown = dom(f"file://{acted}", page.parent / "browser", 20, size)
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.S) or [""]
    assert found, "the page did not come to an end"
    return json.loads(unescape(found))
