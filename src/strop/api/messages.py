"""Messages that name options of the command line, in the words of a Python call."""

import contextlib
import re
from collections.abc import Iterator

from strop.support.errors import RunStopped, UserError

KEYWORDS = {
    "at": "at", "band": "band", "baseline": "baseline", "best": "best", "by": "by", "data": "data",
    "engine": "engine", "exchange": "exchange", "group": "group", "k": "k", "lengths": "lengths",
    "model": "model", "out": "out", "port": "port", "prompts": "prompts", "reward": "reward",
    "samples": "samples", "score-on": "score_on", "serve": "serve", "spare": "spare",
    "split": "split", "staleness": "staleness", "start": "start", "step": "step",
    "success": "success", "target": "target", "task": "task", "tune": "tune", "tune-by": "tune_by",
    "updates": "updates", "validation": "validation", "workers": "workers",
}  # fmt: skip
PATTERNS = (
    (re.compile(r"(?:strop train )?--resume (\S*[^\s:,;.`])"), r"strop.resume('\1')"),
    (re.compile(r"pickled:\S*/given/(\w+)\.pickle"), r"\1"),
    (re.compile(r"\S*/given/(\w+)\.jsonl"), r"\1"),
    (re.compile("strop doctor --data FILE --reward SOURCE"), "strop.doctor(data=, reward=)"),
    (re.compile("--trust-files"), "trust_files=True"),
    (re.compile(r"-{2}split (\w+)"), r"split='\1'"),
    (re.compile(r"strop plan RUN OTHER"), "run.plan(other)"),
    (
        re.compile(rf"--({'|'.join(KEYWORDS)})\b(?!-)(?: (?=[0-9]))?"),
        lambda found: f"{KEYWORDS[found[1]]}=",
    ),
)


def in_python(message: str) -> str:
    """The message with keywords for options, and arguments by name, not by their files."""
    for pattern, replacement in PATTERNS:
        message = pattern.sub(replacement, message)
    return message


@contextlib.contextmanager
def messages_in_python() -> Iterator[None]:
    """Inside, the messages of errors name the keywords of a call."""
    try:
        yield
    except (UserError, RunStopped) as error:
        error.args = (in_python(str(error)),)
        raise
