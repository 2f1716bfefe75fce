"""Which characters a tokenizer does not know, for tokenizers of several kinds made here."""

import pytest
from models import tokenizer
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast

from strop.data.encode import encode_prompt
from strop.data.prompts import Prompt
from strop.support.errors import UserError
from strop.support.unknown_characters import check_characters, unknown_characters


def of_bytes(unknown=None):
    """Every byte is a letter; the unknown token, where there is one, also begins every text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: id for id, letter in enumerate(["<end>", *letters])}
    core = Tokenizer(kinds.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if unknown:
        core.post_processor = processors.TemplateProcessing(
            "<end> $0", special_tokens=[("<end>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", unk_token=unknown)


def of_words():
    """Whole words are tokens."""
    core = Tokenizer(kinds.WordLevel({"[UNK]": 0, "add": 1, "two": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")


def test_letters_each_once_in_their_order():
    assert unknown_characters(tokenizer(), "1a+ba=é") == ["a", "b", "é"]
    assert unknown_characters(tokenizer(), "1+2=") == []


def test_words_are_named_as_words():
    assert unknown_characters(of_words(), "add two and two") == ["and"]
    with pytest.raises(UserError, match=r"'and' in 'add and two'; it knows 'add two' alone"):
        check_characters(of_words(), "add and two", "here")
    with pytest.raises(UserError, match=r"in what this one knows \(others do\)$"):
        check_characters(of_words(), "add and two", "here", "others do")


def test_the_unknown_token_by_its_own_name_is_meant():
    assert unknown_characters(tokenizer(), "1<unk>2") == []
    assert unknown_characters(tokenizer(), "1<unk>x") == ["x"]


@pytest.mark.parametrize("unknown", [None, "<end>"])
def test_bytes_write_everything(unknown):
    ours = of_bytes(unknown)
    assert unknown_characters(ours, "Grüße 数 🎲") == []
    ids = encode_prompt(Prompt(0, "数", {}), ours)
    assert len(ids) == 3 + bool(unknown)


def test_a_tokenizer_in_python_is_asked_letter_by_letter():
    class Slow:
        is_fast, unk_token, unk_token_id = False, "<unk>", 2

        def __call__(self, text, add_special_tokens):
            assert not add_special_tokens
            return {"input_ids": [5 if letter.isdigit() else 2 for letter in text]}

    assert unknown_characters(Slow(), "1x2yx") == ["x", "y"]
