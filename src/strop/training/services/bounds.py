"""Bounds the number of tokens of a text by its characters, without running the tokenizer.

Before step 1 every row has to fit. Tokenising a million rows takes minutes, counting characters
seconds, and nearly all rows are far from any limit. A row that slips through (because a template
repeats a message three times, or a word is unknown although its characters are not) is refused in
the same words when it is drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from strop.data.encode import ids_of
from strop.data.given_answers import answer_text, encode_answer
from strop.data.prompts import Prompt
from strop.data.tool_calls import CLOSE_THOUGHT

BY_CHARACTERS = ("BPE", "Unigram")  # tokenizers that can write a word if they know its characters
MOST_A_BYTE = 11  # tokens that a byte of UTF-8 can become under Unicode's normal forms
REPEATS = 2  # how often a chat template may repeat a message's content
JOINTS = 16  # most tokens by which a text in a template differs from the text alone


@dataclass
class Bounds:
    """Upper bounds on the tokens of prompts and answers; None where only the tokenizer can tell.

    template: arguments of the chat template beside the messages.
    """

    tokenizer: Any
    template: Mapping[str, Any] = field(default_factory=dict)
    _plain: set[str] = field(default_factory=set)  # characters that become one or more tokens
    _other: set[str] = field(default_factory=set)  # unknown characters, and those without tokens
    _frames: dict[tuple[str, ...], int] = field(default_factory=dict)  # template's tokens, by roles
    # of answers: the template's tokens, and how often it repeats one
    _answers: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.of_use = _goes_by_characters(self.tokenizer)
        self.added = len(self.tokenizer("")["input_ids"]) + 1  # some also put a blank in front

    def text(self, text: str) -> int | None:
        """Most tokens of a text, without added special tokens."""
        if not self.of_use or not text:
            return None
        if not self._plain.issuperset(text):
            for letter in set(text) - self._plain - self._other:
                (self._plain if self._is_plain(letter) else self._other).add(letter)
            if not self._plain.issuperset(text):
                return None
        return len(text) if text.isascii() else MOST_A_BYTE * len(text.encode())

    def _is_plain(self, letter: str) -> bool:
        ids = self.tokenizer(letter, add_special_tokens=False)["input_ids"]
        return bool(ids) and self.tokenizer.unk_token_id not in ids

    def prompt(self, prompt: Prompt) -> int | None:
        """Most tokens of a prompt. Raises UserError for messages that the template refuses.

        Only the first messages of each order of roles go through the template.
        """
        content = prompt.prompt
        if prompt.ids:
            return len(prompt.ids)
        if isinstance(content, str):
            most = self.text(content)
            return None if most is None else most + self.added
        if prompt.tools:
            return None
        total = 0
        for message in content:
            most = self.text(message["content"] or "") if len(message) == 2 else None
            if most is None:
                return None
            total += most
        roles = tuple(message["role"] for message in content)
        if roles in self._frames:
            return self._frames[roles] + REPEATS * total
        bare = replace(prompt, prompt=[{**message, "content": "x"} for message in content])
        self._frames[roles] = len(ids_of(bare, self.tokenizer, self.template))
        return None

    def answer(self, prompt: Prompt, column: str, enough: int = 0) -> int | None:
        """Most tokens of a given answer; None also where there is none. Raises UserError.

        Behind messages the first of each order of roles goes through the template. enough: a bound
        above it is made tighter, with the tokens of the answer alone.
        """
        given = prompt.columns.get(column)
        text = answer_text(given)
        if isinstance(given, list) and text and len(given[0]) > 2:
            return None
        most = self.text(text)
        if most is None or isinstance(prompt.prompt, str) or prompt.ids:
            return None if most is None else most + 1
        roles = (*(message["role"] for message in prompt.prompt), str(CLOSE_THOUGHT in text))
        if roles not in self._answers:
            self._look_at(prompt, column, text, roles)
            return None
        frame, repeats = self._answers[roles]
        if frame + repeats * most > enough:
            tokens = len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            most = min(most, tokens + JOINTS)
        return frame + repeats * most

    def _look_at(self, prompt: Prompt, column: str, text: str, roles: tuple[str, ...]) -> None:
        """Note what the template makes of this answer, and of one of a single character."""
        if not (known := text.strip()[:1]):
            return
        shown = self.tokenizer.decode(encode_answer(prompt, column, self.tokenizer, self.template))
        written = known + (CLOSE_THOUGHT + known) * (CLOSE_THOUGHT in text)
        bare = replace(prompt, columns={column: written})
        frame = len(encode_answer(bare, column, self.tokenizer, self.template))
        self._answers[roles] = frame, shown.count(text.strip()) or REPEATS


def _goes_by_characters(tokenizer: Any) -> bool:
    """Whether a tokenizer knows every text whose characters it knows."""
    if not tokenizer.is_fast:
        return False
    if type(tokenizer.backend_tokenizer.model).__name__ in BY_CHARACTERS:
        return True
    characters = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    if not characters or any(len(letter) > 1 for letter in characters):
        return False
    whole = tokenizer("".join(characters), add_special_tokens=False)["input_ids"]
    return len(whole) == len(characters) and tokenizer.unk_token_id not in whole
