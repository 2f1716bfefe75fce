"""A language model that scores completions, behind an endpoint with OpenAI's chat protocol.

A judge is a TOML file: `judge:FILE.toml`. A server that does not answer leaves the completion
unscored. An answer without a score counts as the completion's own failure, and so does a request
that the server refuses to read, because a text can talk a judge out of giving a score.
"""

import json
import re
import string
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from strop.rewards.answers import text_of
from strop.rewards.scored import Unscored
from strop.support.errors import UserError, did_you_mean
from strop.support.exits import Exit
from strop.support.files import toml_of
from strop.support.http import UNREAD, Failed, Http, Retries, key_of, why_no_place

_ANSWER_BYTES = 1 << 22
_KEY_ADVICE = "; api_key_env names the environment variable with its key"
_ADVICE = {  # by the status of the answer
    401: _KEY_ADVICE,
    403: _KEY_ADVICE,
    404: "; base_url ends before /chat/completions, mostly with /v1; model is one that it serves",
}
LIMIT = "max_completion_tokens"  # the newer name of max_tokens
LARGEST = 1e6  # of the numbers in a judge's file; timeouts cannot be longer
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class JudgeSettings(BaseModel):
    """The settings in a judge's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    base_url: Text  # up to and including /v1
    model: Text
    prompt: Text  # with {prompt}, {completion} and the data's columns
    score: Text  # regular expression; its last match's first group is the score
    system: str = ""
    # Scores in the text; they become 0 to 1.
    scale: Annotated[list[Number], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    timeout_seconds: Seconds = 60.0  # of one try, to the answer's last byte
    retries: int = Field(default=3, ge=0, le=LARGEST)
    backoff_seconds: float = Field(default=1.0, ge=0, le=LARGEST)  # before the first retry; doubles
    concurrency: int = Field(default=16, ge=1, le=1024)
    api_key_env: str = ""  # name of the environment variable with the key
    temperature: float = Field(default=0.0, ge=0, le=LARGEST)
    max_tokens: int = Field(default=512, ge=1, le=LARGEST)
    extra_body: dict[str, Any] = {}  # further fields of the request

    @field_validator("base_url")
    @classmethod
    def _is_a_place(cls, url: str) -> str:
        if why := why_no_place(url):
            raise ValueError(why)
        return url.rstrip("/")

    @field_validator("score")
    @classmethod
    def _has_a_number(cls, pattern: str) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", FutureWarning)  # its meaning may change
                groups = re.compile(pattern).groups
        except (re.error, FutureWarning) as error:
            raise ValueError(f"it is not a plain regular expression ({error})") from error
        if not groups:
            raise ValueError("it must have a group around the number: (\\d+)")
        return pattern

    @field_validator("scale")
    @classmethod
    def _rises(cls, scale: list[float]) -> list[float]:
        if scale[0] >= scale[1]:
            raise ValueError("it must be two rising numbers")
        return scale

    @field_validator("prompt")
    @classmethod
    def _names_columns(cls, prompt: str) -> str:
        for name in fields_of(prompt):
            if not name.isidentifier():
                raise ValueError(
                    f"it has the field {{{name}}}: write a column's plain name, and {{{{ for a "
                    "brace"
                )
        check_filling(prompt)
        return prompt


def fields_of(prompt: str) -> list[str]:
    """The fields of a prompt's template. Raises ValueError for a malformed one."""
    try:
        found = string.Formatter().parse(prompt)
        return [name for _, name, _, _ in found if name is not None]
    except ValueError as error:
        raise ValueError(f"it cannot be read ({error}): write {{{{ for a brace") from error


def check_filling(prompt: str) -> None:
    """Raise ValueError for a template that fails whatever it is filled with.

    A column may hold text or a number; prompt and completion are text.
    """
    for _, name, spec, conversion in string.Formatter().parse(prompt):
        if name is None:
            continue
        form = f"!{conversion}" * bool(conversion) + f":{spec}" * bool(spec)
        values: tuple[Any, ...] = ("",) if name in ("prompt", "completion") else ("", 1, 1.5)
        if not any(_fills(f"{{0{form}}}", value) for value in values):
            raise ValueError(
                f"it has the field {{{name}{form}}}, which nothing can fill: write {{{name}}}, and "
                "{{ for a brace"
            )


def _fills(field: str, value: Any) -> bool:
    try:
        field.format(value)
    except (ValueError, TypeError, LookupError):
        return False
    return True


class Judge:
    """Asks the endpoint for each completion, several at once."""

    rows_are_independent = True

    def __init__(self, place: str) -> None:
        self.settings = read_settings(Path(place))
        self.fields = fields_of(self.settings.prompt)
        self.pattern = re.compile(self.settings.score)
        key = key_of(self.settings.api_key_env, "api_key_env", "the endpoint's", f"judge {place}: ")
        self.retries = Retries(self.settings.retries + 1, self.settings.backoff_seconds)
        self.http = Http(
            self.settings.timeout_seconds,
            {"Authorization": f"Bearer {key}"} if key else {},
            self.settings.concurrency,
            _ANSWER_BYTES,
        )
        one = self.retries.tries * self.settings.timeout_seconds + self.retries.longest_wait
        # n rows never take longer than the grader's 1 + (n - 1) / 32 times this.
        self.timeout_seconds = one * max(1.0, 32 / self.settings.concurrency) + 30.0

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_extra: Callable[[str, Sequence[Any]], None],
        **columns: Sequence[Any],
    ) -> list[Any]:
        for name in self.fields:
            if name not in ("prompt", "completion") and name not in columns:
                raise UserError(
                    f"the judge's prompt has the field {{{name}}} and the data has no such column"
                    f"{did_you_mean(name, columns)}"
                )
        rows = [
            {
                **{name: columns[name][i] for name in self.fields if name in columns},
                "prompt": _prompt_text(prompt),
                "completion": text_of(completion),
            }
            for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        try:
            asked = [self.settings.prompt.format_map(row) for row in rows]
        except (ValueError, TypeError) as error:  # a number's form for a column of texts
            raise UserError(f"the judge's prompt cannot be filled with a row: {error}") from error
        with ThreadPoolExecutor(self.settings.concurrency) as pool:
            answers = list(pool.map(self._ask, asked))
        log_extra("judge", [a.reason if isinstance(a, Unscored) else a.text for a in answers])
        return [a if isinstance(a, Unscored) else self._score(*a) for a in answers]

    def _score(self, text: str, cut: bool) -> float | Unscored:
        matches = list(self.pattern.finditer(text))
        if not matches:
            long = f", which max_tokens = {self.settings.max_tokens} cut off" if cut else ""
            return _unreadable(f"no score in the judge's answer {text[-120:]!r}{long}")
        low, high = self.settings.scale
        try:
            value = float(matches[-1].group(1))
        except (TypeError, ValueError):
            return _unreadable(f"the judge's score {matches[-1].group(1)!r} is not a number")
        if not low <= value <= high:
            return _unreadable(f"the judge's score {value:g} is outside {low:g} to {high:g}")
        return (value - low) / (high - low)

    def _ask(self, prompt: str) -> "Said | Unscored":
        """Ask the judge, with as many tries as the settings allow, and return what it said."""
        url = f"{self.settings.base_url}/chat/completions"
        body = self._body(prompt)
        try:
            return self.http.ask(url, body, read=_said, retries=self.retries)
        except WithoutText as error:
            return _unreadable(f"the judge gave no text: {error}")
        except Failed as error:
            cause = Exit.UNREADABLE if error.status in UNREAD else Exit.UNREACHABLE
            why = f"the judge did not answer: {error}{_ADVICE.get(error.status, '')}"
            return Unscored(why, cause)
        except OSError as error:
            return Unscored(f"the judge did not answer: {error}", Exit.UNREACHABLE)

    def _body(self, prompt: str) -> dict[str, Any]:
        settings = self.settings
        system = [{"role": "system", "content": settings.system}] if settings.system else []
        limit = {"max_tokens": settings.max_tokens}
        if LIMIT in settings.extra_body:  # some models refuse the older name
            limit = {}
        return {
            "model": settings.model,
            "messages": [*system, {"role": "user", "content": prompt}],
            "temperature": settings.temperature,
            **limit,
            **settings.extra_body,
        }


def read_settings(path: Path) -> JudgeSettings:
    """Read a judge's file. Raises UserError naming the file and the key that is wrong."""
    try:
        return JudgeSettings(**toml_of(path, "the judge"))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            known = did_you_mean(key, JudgeSettings.model_fields)
            raise UserError(f"judge {path}: no key {key!r}{known}") from error
        if first["type"] == "missing":
            raise UserError(f"judge {path}: {key} is missing: give it as text") from error
        why = first["msg"].removeprefix("Value error, ")
        raise UserError(f"judge {path}: {key} = {first['input']!r}: {why}") from error


class Said(NamedTuple):
    """A judge's answer. cut: it ended at the limit of tokens."""

    text: str
    cut: bool


def _said(answer: bytes) -> Said:
    """What a chat completion says. Raises Failed for another answer, which may be retried."""
    try:
        choice = json.loads(answer)["choices"][0]
        content, cut = choice["message"]["content"], choice.get("finish_reason") == "length"
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Failed(f"not a chat completion: {answer[:200]!r}", again=True) from error
    if cut and content is None:  # all of its tokens were thoughts
        content = ""
    if not isinstance(content, str):
        raise WithoutText(f"a chat completion without text: {answer[:200]!r}", again=True)
    return Said(content, cut)


class WithoutText(Failed):
    """A chat completion without text, for example because a filter withheld it."""


def _unreadable(why: str) -> Unscored:
    return Unscored(why, Exit.UNREADABLE)


def _prompt_text(prompt: Any) -> str:
    """The prompt for the template: text, the only message's text, or one line a message."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return prompt[0]["content"] or ""
    return "\n".join(f"{message['role']}: {message['content'] or ''}" for message in prompt)
