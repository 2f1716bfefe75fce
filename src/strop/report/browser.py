"""Shows the rollouts of a run, one step at a time: buttons for steps, and examples of each."""

from collections.abc import Sequence
from html import escape
from typing import Any

from strop.report.recorded import Recorded, plain, spread
from strop.report.run_folder import Run
from strop.report.tables import show
from strop.tracking.metrics_file import is_number

TEXTS = ("prompt", "completion")
MAX_TEXT = 20_000  # characters of a prompt or completion that the page shows
MAX_STEPS = 48  # of all runs together
MAX_BYTES = 250_000  # of all texts together, to keep the page small


def rollout_browser(runs: Sequence[Run]) -> str:
    """Best, worst and typical rollouts of the recorded steps, with the last step open; empty when
    there are none.
    """
    known = [(run, [step for step in run.rollouts if step.examples]) for run in runs]
    shown = [(run, steps) for run, steps in known if steps]
    room = max(1, MAX_STEPS // max(1, len(shown)))
    shown = [(run, spread(steps, room)) for run, steps in shown]
    rows = [row for _, steps in shown for step in steps for _, row in step.examples]
    most = _longest([plain(row.get(name)) for row in rows for name in TEXTS])
    options = "".join(f"<option>{escape(run.name)}</option>" for run, _ in shown)
    choice = f'<p><label>Run <select autocomplete="off">{options}</select></label></p>'
    blocks = "".join(
        f'<div class="of-run"{" hidden" if index else ""}>{_steps(steps, most)}</div>\n'
        for index, (_, steps) in enumerate(shown)
    )
    return f'<div class="browser">\n{choice if len(shown) > 1 else ""}{blocks}</div>' * bool(shown)


def _steps(found: Sequence[Recorded], most: int) -> str:
    """Buttons for the steps and the examples of each; the last step is open."""
    buttons = "".join(
        f'<button type="button" aria-pressed="{str(recorded is found[-1]).lower()}">'
        f"{recorded.step:,}</button>"
        for recorded in found
    )
    blocks = "".join(
        f'<div class="of-step"{"" if recorded is found[-1] else " hidden"}>'
        f"{_examples(recorded, most)}</div>\n"
        for recorded in found
    )
    return f'<p class="steps"><span>Step</span>{buttons}</p>\n{blocks}'


def _examples(recorded: Recorded, most: int) -> str:
    found = []
    for kind, row in recorded.examples:
        texts = "".join(
            f'<div><h4>{name}</h4><div class="text">{_text(row.get(name), most)}</div></div>'
            for name in TEXTS
        )
        found.append(
            f'<article><p class="facts"><b>{kind}</b>{_facts(row)}</p>'
            f'<div class="texts">{texts}</div></article>'
        )
    return "".join(found)


def _facts(row: dict[str, Any]) -> str:
    """All short values of a rollout besides its texts."""
    facts = []
    for name, value in row.items():
        if name in TEXTS or value is None or isinstance(value, list | dict | bytes):
            continue
        text = show(value) if type(value) is float and is_number(value) else str(value)
        if len(text) <= 60:
            facts.append(f"<span>{escape(name)} <b>{escape(text)}</b></span>")
    return "".join(facts)


def _longest(texts: Sequence[str]) -> int:
    """The number of characters shown of each text, so that all together stay within MAX_BYTES."""
    most = MAX_TEXT
    while most > 50 and sum(_num_bytes(text[:most]) for text in texts) > MAX_BYTES:
        most = most * 4 // 5
    return most


def _num_bytes(text: str) -> int:
    return len(escape(text).encode("utf-8", "backslashreplace"))


def _text(value: Any, most: int) -> str:
    text = plain(value)
    if len(text) > most:
        return f"{escape(text[:most])}<em> … {len(text) - most:,} more characters</em>"
    return escape(text)
