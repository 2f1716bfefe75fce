"""A strategy picks an instruction that the model's tokenizer can encode."""

import pytest
from models import tokenizer
from test_bounds import bytewise
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from strop.data.prompts import Prompt
from strop.environments.tasks import Task
from strop.parts.curation import bring_back_opposites
from strop.parts.probe import mark_step_ends, probe_answers
from strop.parts.rollout import sample_two_attempts
from strop.parts.rollout._reflections import form_of
from strop.support.errors import UserError
from strop.training.services.texts import Limits, RunTexts

FORMS = (
    sample_two_attempts.WORDS,
    bring_back_opposites.WORDS,
    mark_step_ends.MARKERS,
    probe_answers.OPENINGS,
)


def letters(known):
    """A tokenizer of these letters alone."""
    vocabulary = {letter: n for n, letter in enumerate(("<unk>", *known))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


def texts_of(kind):
    return RunTexts(
        Task("made up", [Prompt(0, "1", {})], [], [], ()), kind, Limits(8, 8, 40, 64, 8)
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_vocabulary_of_words_gets_a_sentence_and_a_small_one_what_it_has(form):
    assert texts_of(bytewise()).first_known(form, "rollout.words") == form[0]
    assert texts_of(tokenizer()).first_known(form, "rollout.words") == form[1]


def test_reflections_are_json_where_it_can_be_written():
    assert form_of(texts_of(bytewise())) == "json"
    assert form_of(texts_of(letters("0123456789\n"))) == "number"


def test_a_model_that_can_write_neither_is_refused():
    bare = texts_of(letters("ab"))
    message = r"what rollout.words says has letters .* '\\n' in '\\n'.* \(rollout.words=\.\.\.\)"
    with pytest.raises(UserError, match=message):
        bare.first_known(sample_two_attempts.WORDS, "rollout.words")
    with pytest.raises(UserError, match="'z' in 'z'"):  # the last is what any model should know
        bare.first_known(("x", "y", "z"), "rollout.words")
    with pytest.raises(UserError, match=r"what rollout.ask says has letters"):
        form_of(bare)
