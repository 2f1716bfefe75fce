"""Examines an endpoint with OpenAI's protocol: whether a run can train on it, or only evaluate."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strop.diagnosis.finding import Finding, shortened
from strop.support.errors import UserError
from strop.support.http import Failed, Http, why_no_place

SECONDS = 60.0  # timeout of one answer
TOKENS = 8  # of each answer
PROMPT = "1+1="
ROUTES = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate")
MISSING = -9999.0  # vLLM's value for an unknown log-probability


def examine(url: str, key: str) -> tuple[list[str], dict[str, Any], list[Finding]]:
    """Lines about an endpoint, facts, and findings. Raises UserError for an invalid address."""
    if why := why_no_place(url):
        raise UserError(
            f"{url!r} is not an address ({why}): give http://HOST:PORT, as the server prints it"
        )
    place = url.rstrip("/").removesuffix("/v1")
    http = Http(SECONDS, {"Authorization": f"Bearer {key}"} if key else {})
    try:
        return _examined(Endpoint(http, place))
    finally:
        http.close()


@dataclass
class Endpoint:
    """A server, the model that is requested from it, and why some of its routes fail."""

    http: Http
    place: str
    model: str = ""
    why: dict[str, str] = field(default_factory=dict)

    def get(self, path: str) -> Any:
        """The response to a GET. Raises Failed."""
        return self._ask(path, None)

    def post(self, path: str, **body: Any) -> dict[str, Any] | None:
        """The response to a POST; None when it fails, with the reason in `why`."""
        if self.model:
            body["model"] = self.model
        try:
            found = self._ask(path, body)
        except Failed as failed:
            self.why[path] = str(failed)
            return None
        choices = found.get("choices") if isinstance(found, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            self.why[path] = f"an answer without choices: {shortened(str(found))}"
            return None
        return dict(found)

    def _ask(self, path: str, body: Any) -> Any:
        try:
            return self.http.ask(self.place + path, body, read=json.loads)
        except TimeoutError as error:
            raise Failed(f"no answer in {SECONDS:g} s") from error
        except (ValueError, RecursionError) as error:
            raise Failed("an answer that is not JSON") from error


def _examined(endpoint: Endpoint) -> tuple[list[str], dict[str, Any], list[Finding]]:
    found, models = _models(endpoint)
    report: dict[str, Any] = {"url": endpoint.place, "models": models}
    lines = [endpoint.place]
    for name, length in models.items():
        lines.append(f"  {name}: context {f'{length} tokens' if length else 'unknown'}")
    if found.status == "problem":
        return lines, {"endpoint": report}, [found]
    answers = _answers(endpoint)
    report["routes"] = {route: answers[route] is not None for route in ROUTES}
    found_all = [
        found,
        _routes(endpoint, answers),
        *([] if not any(answers.values()) else [_gives(answers, report), _reads_ids(answers)]),
        _seed(endpoint, answers),
        _versions(answers),
    ]
    return lines, {"endpoint": report}, [each for each in found_all if each is not None]


def _models(endpoint: Endpoint) -> tuple[Finding, dict[str, int | None]]:
    question = "Does it answer, and with which model?"
    try:
        listed = endpoint.get("/v1/models")
        models = {str(each["id"]): each.get("max_model_len") for each in listed["data"]}
    except Failed as failed:
        advice = "start the server, or correct the address"
        if failed.status in (401, 403):
            advice = "set OPENAI_API_KEY to its key"
        return Finding(question, "problem", f"/v1/models: {failed}", advice), {}
    except (LookupError, TypeError, AttributeError):
        text = "/v1/models lists no models in OpenAI's form"
        return Finding(question, "problem", text, "is it a server of models?"), {}
    if not models:
        return Finding(question, "problem", "/v1/models is empty", "serve a model"), {}
    endpoint.model, length = next(iter(models.items()))
    summary = f"{endpoint.model}, context {length or 'unknown'}"
    if len(models) > 1:
        others = ", ".join(list(models)[1:6])
        return Finding(
            question, "note", f"{summary}; {others} besides, which were not asked"
        ), models
    if not length:
        text = f"{summary}: clients cannot tell how long a prompt may be"
        return Finding(question, "note", text, "serve max_model_len in /v1/models"), models
    return Finding(question, "ok", summary), models


Answers = Mapping[str, dict[str, Any] | None]


def _answers(endpoint: Endpoint) -> Answers:
    """Each route's response to a short request for everything that training needs."""
    chat, completions, generate = ROUTES
    common: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 1.0, "seed": 1}
    messages = [{"role": "user", "content": PROMPT}]
    found: dict[str, dict[str, Any] | None] = {}
    extra = {"return_token_ids": True}
    logprobs = {"logprobs": True, "top_logprobs": 0}
    found[chat] = endpoint.post(chat, messages=messages, **common, **extra, **logprobs) or (
        endpoint.post(chat, messages=messages, max_tokens=TOKENS)
    )
    found[completions] = endpoint.post(
        completions, prompt=PROMPT, logprobs=0, **common, **extra
    ) or endpoint.post(completions, prompt=PROMPT, max_tokens=TOKENS)
    ids = _prompt_ids(found) or [1, 2]
    found[generate] = endpoint.post(
        generate, token_ids=ids, sampling_params={**common, "logprobs": 1}
    )
    return found


def _prompt_ids(answers: Answers) -> list[int]:
    """The tokens of a prompt, from the first answer that reports them."""
    for answer in answers.values():
        if answer is not None:
            choice = answer["choices"][0]
            ids = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
            if isinstance(ids, list) and ids:
                return ids
    return []


def _routes(endpoint: Endpoint, answers: Answers) -> Finding:
    question = "Which routes does it have?"
    there = [route for route, answer in answers.items() if answer is not None]
    lacking = [f"{r} ({shortened(endpoint.why[r])})" for r, a in answers.items() if a is None]
    text = f"{', '.join(there) or 'none'}; not {', '.join(lacking)}" if lacking else "all three"
    if not there:
        return Finding(question, "problem", text, "serve a model that answers one of these")
    if ROUTES[0] not in there:
        advice = "agents call /v1/chat/completions: serve a model with a chat template"
        return Finding(question, "note", text, advice)
    return Finding(question, "note" if lacking else "ok", text)


def level(answer: Mapping[str, Any]) -> str:
    """What an answer contains: "tokens with log-probabilities", "tokens", or "text"."""
    choice = answer["choices"][0]
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids:
        return "text"
    try:
        logprobs = choice.get("logprobs") or {}
        values = logprobs.get("token_logprobs") or [each["logprob"] for each in logprobs["content"]]
        whole = len(values) == len(ids) and all(math.isfinite(e) and e != MISSING for e in values)
    except (LookupError, TypeError, AttributeError):  # another form, or missing
        whole = False
    return "tokens with log-probabilities" if whole else "tokens"


def _gives(answers: Answers, report: dict[str, Any]) -> Finding:
    question = "What does it give: can it be trained on?"
    levels = {route: level(answer) for route, answer in answers.items() if answer is not None}
    report["gives"] = levels
    summary = "; ".join(f"{route}: {what}" for route, what in levels.items())
    best = sorted(levels.values(), key=len)[-1]
    if best == "text":
        text = f"{summary}. Text alone serves evaluation, never training: its tokens are unknown"
        advice = "use a server that supports return_token_ids: strop serve, vLLM, SGLang"
        return Finding(question, "note", text, advice)
    if best == "tokens":
        text = f"{summary}. Their log-probabilities under the sampling policy are unknown"
        advice = "let the server return log-probabilities, or use a method without ratios"
        return Finding(question, "note", text, advice)
    return Finding(question, "ok", summary)


def _reads_ids(answers: Answers) -> Finding | None:
    """Whether both text routes report the tokens of the prompt that they read."""
    question = "Does it report the tokens that it read?"
    text_routes = [answers[route] for route in ROUTES[:2]]
    there = [answer for answer in text_routes if answer is not None]
    if not there:
        return None
    if all(_prompt_ids({"": answer}) for answer in there):
        return Finding(question, "ok", "prompt_token_ids are in its answers")
    return Finding(
        question, "note", "an answer has no prompt_token_ids, so turns cannot be joined by tokens",
        "use a server that supports return_token_ids",
    )  # fmt: skip


def _seed(endpoint: Endpoint, answers: Answers) -> Finding | None:
    """Whether a repeated request gets the same answer."""
    question = "Does a seed give the same answer again?"
    route = next((route for route in ROUTES[:2] if answers[route] is not None), None)
    if route is None:
        return None
    prompt: dict[str, Any] = {"prompt": PROMPT}
    if route == ROUTES[0]:
        prompt = {"messages": [{"role": "user", "content": PROMPT}]}
    texts = []
    for _ in range(2):
        found = endpoint.post(route, **prompt, max_tokens=TOKENS, temperature=1.0, seed=7)
        if found is None:
            return Finding(question, "note", f"a seed is refused: {shortened(endpoint.why[route])}")
        choice = found["choices"][0]
        texts.append(choice.get("text", choice.get("message")))
    if texts[0] == texts[1]:
        return Finding(question, "ok", "two requests with one seed got the same answer")
    return Finding(question, "note", "two requests with one seed got different answers")


def _versions(answers: Answers) -> Finding | None:
    question = "Does it report which weights drew an answer?"
    there = [answer for answer in answers.values() if answer is not None]
    if not there:
        return None
    versions = [answer.get("weights_version") for answer in there]
    if all(each is not None for each in versions):
        return Finding(question, "ok", f"weights_version {versions[0]}")
    return Finding(
        question, "note", "no: while the model is trained, the age of an answer is unknown",
        "strop serve reports it as weights_version",
    )  # fmt: skip
