"""Rewrites messages that name command-line options for callers from Python."""

import contextlib
import re
from collections.abc import Iterator

from strop.api.options import HEADS
from strop.support.errors import RunStopped, UserError

OPTIONS = (
    "at", "band", "baseline", "best", "by", "data", "draws", "engine", "exchange", "extrapolate",
    "group", "k", "lengths", "max-tokens", "mean", "metric", "model", "out", "port", "prompts",
    "replay", "reward", "samples", "score-on", "serve", "spare", "split", "staleness", "start",
    "step", "success", "target", "task", "tune", "tune-by", "tune-seeds", "updates", "validation",
    "workers",
)  # fmt: skip
# Names that an error offers in place of an unknown option, and the option in such a hint. One with
# two dots has no keyword: it is given in **{"terms.kl.coef": 0.1}.
OFFERED = re.compile(r"(?<=, did you mean )[^?\n]*|(?<= here )[^;\n]*")
OPTION = re.compile(rf"(?<![\w.])({'|'.join(sorted(HEADS))})\.(\w+)(?![\w.])")
PATTERNS = (
    (re.compile(r"strop compare --resume (\S*[^\s:,;.`])"), r"strop.resume_comparison('\1')"),
    (
        re.compile(r"(?<!strop sequence )(?:strop train )?--resume (\S*[^\s:,;.`])"),
        r"strop.resume('\1')",
    ),
    (re.compile(r"pickled:\S*/given/(\w+)\.pickle"), r"\1"),
    (re.compile(r"\S*/given/(\w+)\.jsonl"), r"\1"),
    (re.compile("strop doctor --data FILE --reward SOURCE"), "strop.doctor(data=, reward=)"),
    (re.compile("--trust-files"), "trust_files=True"),
    (re.compile(r"-{2}split (\w+)"), r"split='\1'"),
    (re.compile(r"strop plan RUN OTHER"), "run.plan(other)"),
    (
        re.compile(rf"--({'|'.join(OPTIONS)})\b(?!-)(?: (?=-?[0-9]))?"),
        lambda found: f"{found[1].replace('-', '_')}=",
    ),
    (OFFERED, lambda found: OPTION.sub(r"\1_\2", found[0])),
)


def in_python(message: str) -> str:
    """The message with keywords in place of options, and arguments named instead of their files."""
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
