"""Writes the page as one file, or serves it on this machine only: markup, styles, script and the
data of a step."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib import resources
from pathlib import Path

from strop.inspection.data import Step, read_step, recorded_steps
from strop.report.about import facts
from strop.report.html import frame
from strop.report.local_server import LocalServer, Reply
from strop.support.errors import UserError
from strop.support.writing import write_whole, writing

# Concatenated in this order, they are one script.
SCRIPTS = (
    "store.js", "shades.js", "panel.js", "rollouts.js", "tree.js", "beside.js", "keys.js",
)  # fmt: skip


def write_page(run: Path, number: int | None, out: Path) -> int:
    """Write the page of a step, by default the last; returns the step. Raises UserError."""
    step = read_step(run, number)
    text = render(run, step, [step.number])
    with writing(out.parent, out.name):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, text)
    return step.number


def render(run: Path, step: Step, steps: Sequence[int]) -> str:
    """The page of a step. steps: the steps that can be opened from it."""
    name = run.resolve().name
    about = facts(_config(run))
    data = json.dumps({"run": name, "steps": list(steps), "facts": about, **step.packed()})
    data = data.replace("<", "\\u003c")  # "<" inside a data block could end it
    body = (
        f'{_asset("body.html")}<script type="application/json" id="data">{data}</script>\n'
        f"<script>(() => {{\n{''.join(map(_asset, SCRIPTS))}}})();</script>\n"
    )
    return frame(f"strop: {name}, step {step.number}", _asset("inspect.css"), body)


def _asset(name: str) -> str:
    return resources.files("strop.inspection").joinpath("page", name).read_text(encoding="utf-8")


def _config(run: Path) -> str:
    try:
        return (run / "config.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {run / 'config.toml'}: {error}") from error


def page_of(run: Path, number: int | None) -> str:
    """The page of a step, with links to all steps stored so far. Raises UserError."""
    return render(run, read_step(run, number), recorded_steps(run))


def open_server(run: Path, number: int | None, port: int = 0) -> LocalServer:
    """A server of the run's steps; `number` is the first one shown, by default the last step.

    port 0: any free one. Raises UserError when the step does not exist, and for a port in use.
    """
    steps = recorded_steps(run)
    if number is not None and number not in steps:
        page_of(run, number)  # raises UserError, which lists the steps

    def reply(path: str, query: Mapping[str, str]) -> Reply:
        if path:
            return Reply("there is one page", "text/plain", HTTPStatus.NOT_FOUND)
        try:
            asked = query.get("step")
            return Reply(page_of(run, int(asked) if asked else number))
        except (UserError, ValueError) as error:
            return Reply(str(error), "text/plain", HTTPStatus.NOT_FOUND)

    return LocalServer(reply, port)
