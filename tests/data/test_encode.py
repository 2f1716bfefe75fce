"""Prompts as token ids, with a word tokenizer that is made here."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from strop.data.encode import completion_form, encode_prompt, encode_reworded
from strop.data.prompts import Prompt
from strop.support.errors import UserError

WORDS = ["?", "user", "assistant", ":", "add", "two", "and", "three"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
CHAT = [{"role": "user", "content": "add two"}]


@pytest.fixture
def tokenizer():
    core = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    core.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?", chat_template=TEMPLATE)


def words(ids):
    return " ".join(WORDS[i] for i in ids)


def test_text(tokenizer):
    ids = encode_prompt(Prompt(0, "add two and three", {}), tokenizer)
    assert type(ids) is list
    assert words(ids) == "add two and three"


@pytest.mark.parametrize("added", ["<s> $A", "<s> $A </s>", "$A </s>"])
def test_a_text_begins_once_and_does_not_end(tokenizer, added):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer.add_special_tokens(special)
    ids = [(word, tokenizer.convert_tokens_to_ids(word)) for word in special.values()]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=added, special_tokens=ids
    )
    begins = ["<s>"] if added.startswith("<s>") else []
    for text, expected in (
        ("add two", [*begins, "add", "two"]),
        ("<s>add two", ["<s>", "add", "two"]),
        ("two</s>add", [*begins, "two", "</s>", "add"]),
        ("add</s>", [*begins, "add", "</s>"]),
    ):
        found = encode_prompt(Prompt(0, text, {}), tokenizer)
        assert tokenizer.convert_ids_to_tokens(found) == expected


def test_messages_end_where_the_answer_begins(tokenizer):
    ids = encode_prompt(Prompt(0, CHAT, {}), tokenizer)
    assert type(ids) is list
    assert words(ids) == "user : add two assistant :"


def test_a_template_result_that_is_a_batch_of_one(tokenizer, monkeypatch):
    real = tokenizer.apply_chat_template
    plain = real(CHAT, add_generation_prompt=True, return_dict=False)
    for result in (plain, {"input_ids": plain}, {"input_ids": [plain]}):

        def apply(*given, tokenize, result=result, **options):
            return result if tokenize else real(*given, tokenize=False, **options)

        monkeypatch.setattr(tokenizer, "apply_chat_template", apply)
        ids = encode_prompt(Prompt(0, CHAT, {}), tokenizer)
        assert words(ids) == "user : add two assistant :"


def test_a_prompt_of_no_tokens_is_refused(tokenizer):
    with pytest.raises(UserError, match="prompt 5 has no tokens"):
        encode_prompt(Prompt(5, "  ", {}), tokenizer)


def test_messages_without_a_template(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(UserError, match=r"model\.chat_template=FILE"):
        encode_prompt(Prompt(5, CHAT, {}), tokenizer)


def test_completion_form():
    assert completion_form("add", "five") == "five"
    assert completion_form(CHAT, "five") == [{"role": "assistant", "content": "five"}]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("add two", "add two three and add two"),
        (CHAT, "user : add two three and add two assistant :"),
        ([*CHAT, {"role": "assistant", "content": "three"}, {"role": "user", "content": "two"}],
         "user : add two assistant : three user : two three and two assistant :"),
    ],
)  # fmt: skip
def test_reworded_with_an_answer(tokenizer, prompt, expected):
    ids = encode_reworded(
        Prompt(0, prompt, {}), "{prompt} {answer} and {prompt}", "three", tokenizer
    )
    assert words(ids) == expected


def test_what_is_filled_in_is_not_read_again(tokenizer):
    ids = encode_reworded(Prompt(0, "add {answer}", {}), "{prompt} : {answer}", "two", tokenizer)
    assert words(ids) == "add ? ? ? : two"
