"""Finds characters that a tokenizer does not know; it encodes all of them as the same token."""

from typing import Any

from strop.support.errors import UserError

SMALL = 256  # most tokens of a vocabulary that a message can list


def unknown_characters(tokenizer: Any, text: str) -> list[str]:
    """The pieces of a text that become the tokenizer's unknown token, each once; mostly none.

    The unknown token's own name in the text does not count, because it is written on purpose.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return []
    text = text.replace(tokenizer.unk_token, "")
    plain = {"add_special_tokens": False}  # some begin every text with their unknown token
    if not tokenizer.is_fast:
        characters = dict.fromkeys(text)
        return [
            letter for letter in characters if unknown in tokenizer(letter, **plain)["input_ids"]
        ]
    found = tokenizer(text, return_offsets_mapping=True, **plain)
    places = zip(found["input_ids"], found["offset_mapping"], strict=True)
    return list(dict.fromkeys(text[begin:end] for id, (begin, end) in places if id == unknown))


def check_characters(tokenizer: Any, text: str, where: str, how: str = "") -> None:
    """Raise UserError, beginning with `where`, for a text with characters that are unknown.

    how: a hint for writing the text in known characters; empty: no hint.
    """
    lost = unknown_characters(tokenizer, text)
    if not lost:
        return
    shown = ", ".join(repr(piece) for piece in lost[:10])
    more = f" and {len(lost) - 10} more" if len(lost) > 10 else ""
    known = ""
    if len(tokenizer) <= SMALL:
        tokens = sorted(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens))
        gap = " " * any(len(token) > 1 for token in tokens)
        known = f"; it knows {gap.join(tokens)!r} alone"
    raise UserError(
        f"{where} has letters that the model's tokenizer would read as {tokenizer.unk_token}: "
        f"{shown}{more} in {text[:60]!r}{known}: give a model that knows them (--model), or write "
        "the text in what this one knows" + (f" ({how})" if how else "")
    )
