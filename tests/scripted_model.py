"""A tiny model over characters that writes given texts: each answer is one token of its own."""

import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fakes.models import from_table
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

SPECIAL = ("<pad>", "<eos>", "<unk>")
# Messages one after another, tools first, a tool's answer in its own words; thoughts are shown only
# in the turns after the last question.
TEMPLATE = """{%- if tools %}{{ 'tools:' }}{% for t in tools %}{{ ' ' ~ t.function.name }}\
{% endfor %}{{ '\\nwrite <tool_call>...</tool_call>\\n' }}{% endif -%}
{%- set last = namespace(user=0) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}\
{% endfor -%}
{%- for m in messages -%}
{%- set text = m.content -%}
{%- if m.role == 'assistant' and '</think>' in text and loop.index0 < last.user -%}
{%- set text = text.split('</think>')[-1] -%}
{%- endif -%}
{{ '[' ~ m.role ~ ']' ~ text }}{% if m.role == 'assistant' %}{{ '<eos>' }}{% endif %}{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif -%}"""


def scripted_tokenizer(answers: Sequence[str], template: str = "") -> PreTrainedTokenizerFast:
    """A token for each printable character, and one for each of the answers."""
    known = dict.fromkeys((*SPECIAL, *string.printable, *answers))
    vocabulary = {text: number for number, text in enumerate(known)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    whole = "|".join(re.escape(answer) for answer in sorted(answers, key=len, reverse=True))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(rf"({whole}|[\s\S])"), "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False, model_max_length=4096,
    )  # fmt: skip
    if template:
        tokenizer.chat_template = template
    return tokenizer


def save_scripted(
    folder: Path, answers: Mapping[str, float], template: str = "", more: Sequence[str] = (),
    then: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> Path:  # fmt: skip
    """Write a model that draws one of the answers, by their shares, and ends.

    more: further texts of one token each. then: what follows a text, in place of the end.
    """
    following = {text: share for texts in then.values() for text, share in texts.items()}
    tokenizer = scripted_tokenizer((*answers, *following, *more), template)
    number = tokenizer.convert_tokens_to_ids

    def line(shares: Mapping[str, float]) -> list[float]:
        found = [0.0] * len(tokenizer)
        for text, share in shares.items():
            found[number(text)] = share
        return found

    table = [line(answers) for _ in range(len(tokenizer))]
    for text in (*answers, *following):
        table[number(text)] = line(then.get(text, {"<eos>": 1.0}))
    model = from_table(table, context=4096).float()
    end = tokenizer.eos_token_id
    model.config.update({"eos_token_id": end, "pad_token_id": 0, "bos_token_id": None})
    model.generation_config.eos_token_id = end
    disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
