"""Bounds on tokens: never below the truth, and rows that surely fit are not tokenised."""

import dataclasses
import types

import pytest
from models import tokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from strop.data.encode import encode_prompt
from strop.data.given_answers import encode_answer
from strop.data.prompts import Prompt
from strop.engines.open import ENGINES, EngineSettings, settings_of
from strop.environments.tasks import Task
from strop.parts.rollout.read_answers import ReadAnswers
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError
from strop.training import rows
from strop.training.services import bounds, texts
from strop.training.services.bounds import Bounds
from strop.training.services.texts import Lately, Limits, RunTexts

TEMPLATE = (
    "{% for m in messages %}{{ '(' if m.role == 'user' else ')' }}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}){% endif %}"
)


def chatty():
    ours = tokenizer()
    ours.chat_template = TEMPLATE
    return ours


def bytewise(normalizer=None):
    """A tokenizer of bytes, without an unknown token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if normalizer is not None:
        inner.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def words():
    """A tokenizer of whole words: its letters say nothing."""
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "aa": 3}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


@pytest.mark.parametrize("make", [tokenizer, bytewise, lambda: bytewise(normalizers.NFKD())])
@pytest.mark.parametrize("text", ["1+2=", "12", " ", "1\n2", "ﷺ", "e\u0301é", "\U0001d160", "日本"])
def test_never_below_the_truth(make, text):
    ours = make()
    most = Bounds(ours).prompt(Prompt(0, text, {}))
    unknown = ours.unk_token_id in ours(text)["input_ids"] if ours.unk_token_id else False
    assert (most is None) == unknown
    if not unknown:
        assert most >= len(encode_prompt(Prompt(0, text, {}), ours))


def test_worked_example():
    """Four letters and what a tokenizer may put before them; of other than ASCII 11 a byte."""
    found = Bounds(bytewise())
    assert (found.text("1+2="), found.text("é")) == (4, 22)
    assert found.prompt(Prompt(0, "1+2=", {})) == 5
    assert found.answer(Prompt(0, "1", {"completion": "345"}), "completion") == 4
    assert found.answer(Prompt(0, "1", {}), "completion") is None
    assert found.answer(Prompt(0, "1", {"completion": 345}), "completion") is None


def test_where_only_the_tokenizer_can_tell():
    assert Bounds(tokenizer()).text("1x") is None  # a letter that it does not know
    assert Bounds(words()).text("a") is None  # "ab" would be unknown
    assert Bounds(tokenizer()).text("") is None


def test_messages_are_bounded_by_the_first_of_their_roles(monkeypatch):
    asked, real = [], bounds.ids_of
    monkeypatch.setattr(bounds, "ids_of", lambda *a: asked.append(a) or real(*a))
    found = Bounds(chatty())

    def prompt(*said):
        roles = ("user", "assistant", "user")
        messages = [{"role": r, "content": c} for r, c in zip(roles, said, strict=False)]
        return Prompt(0, messages, {})

    assert found.prompt(prompt("1+1")) is None
    assert found.prompt(prompt("1+1")) == 4 + 2 * 3  # "(", "x", line break, ")"
    assert found.prompt(prompt("1", "2", "345")) is None
    assert found.prompt(prompt("1", "2", "345")) == 10 + 2 * 5
    assert len(asked) == 2
    assert found.prompt(prompt("1", "x", "3")) is None
    named = Prompt(0, [{"role": "user", "content": "1", "name": "2"}], {})
    assert found.prompt(named) is None


def test_an_answer_behind_messages_is_bounded_with_what_the_template_adds():
    ours = chatty()
    ours.chat_template = TEMPLATE.replace("{{ m.content }}", "{{ ':' }}{{ m.content }}")
    found, chat = Bounds(ours), [{"role": "user", "content": "1+1"}]
    prompts = [Prompt(0, chat, {"completion": text}) for text in ("2", "345", "6" * 9)]
    assert found.answer(prompts[0], "completion") is None
    for prompt, most in zip(prompts[1:], (6, 12), strict=True):  # ":", "2", line break
        assert found.answer(prompt, "completion") == most
        assert most >= len(encode_answer(prompt, "completion", ours))
    assert rows.longest_given(ReadAnswers(), prompts, ours, num_ends=1) == 12  # ":666666666", "\n"


def test_messages_that_the_template_refuses():
    ours = chatty()
    ours.chat_template = "{{ raise_exception('no user') }}"
    with pytest.raises(UserError, match="the chat template refuses the messages of prompt 3: no"):
        Bounds(ours).prompt(Prompt(3, [{"role": "user", "content": "1"}], {}))


def services_of(prompts, limits, ours=None):
    ours = ours or tokenizer()
    task = Task("made up", prompts, [], [], ())
    found = RunTexts(task, ours, limits, end_ids=(1,))
    return types.SimpleNamespace(task=task, limits=limits, texts=found)


def test_no_row_that_surely_fits_is_tokenised(monkeypatch):
    prompts = [Prompt(n, f"{n}+1=", {}, f"data.jsonl row {n + 1}") for n in range(200)]
    prompts[7] = Prompt(7, "1" * 40, {}, "data.jsonl row 8")
    asked, real = [], texts.encode_prompt
    monkeypatch.setattr(texts, "encode_prompt", lambda p, *a: asked.append(p.uid) or real(p, *a))
    services = services_of(prompts, Limits(8, 8, 40, 64, 8))
    for prompt in prompts:
        rows.check_row(services, SampleIndependently(), prompt)
    assert asked == [7]
    assert services.texts.prompt_ids(3) == services.texts.prompt_ids(3) == (6, 13, 4, 21)
    assert asked == [7, 3]  # when it was drawn, once


@pytest.mark.parametrize(
    ("prompt", "columns", "expected"),
    [
        ("1" * 41, {}, "row 1 is 41 tokens long, the limit is 40"),
        (
            "1x",
            {},
            r"row 1, column prompt, has letters that the model's tokenizer would read as <unk>",
        ),
        ("", {}, "has no tokens"),
        ("1", {"completion": "2" * 8}, "the completion of data.jsonl row 1 is 9 tokens long"),
        ("1", {"completion": "x"}, r"row 1, column completion, has letters"),
        ("1", {"completion": None}, "row 1 has no completion"),
        ("1", {"completion": 3}, "must be text or one message"),
        ("1" * 38, {"completion": "2" * 7}, "has room for 2"),
    ],
)
def test_what_was_refused_before_step_1_is(prompt, columns, expected):
    made = Prompt(0, prompt, columns, "data.jsonl row 1")
    part = ReadAnswers() if columns else SampleIndependently()
    limits = Limits(8, 8, 40, 40 if columns else 64, 8)
    with pytest.raises(UserError, match=expected):
        rows.check_row(services_of([made], limits), part, made)


def test_the_longest_answer_is_exact():
    given = [Prompt(n, "1", {"completion": "2" * n}) for n in (3, 9, 4)]
    assert rows.longest_given(ReadAnswers(), given, tokenizer(), num_ends=1) == 10
    assert max(len(encode_answer(p, "completion", tokenizer())) for p in given) == 9


@pytest.mark.parametrize(("room", "told"), [(0, None), (20, None), (16, 17), (10, 17)])
def test_the_engine_hears_of_the_longest_where_it_has_a_limit(room, told):
    heard = []
    engine = types.SimpleNamespace(most_tokens=room, check_longest=heard.append)
    evaluation = types.SimpleNamespace(every=0, max_prompts=9)
    config = types.SimpleNamespace(engine=engine, evaluation=evaluation)
    prompts = [Prompt(n, "1" * n, {}) for n in (3, 9, 5)]
    services = services_of(prompts, Limits(8, 8, 40, 64, 8))
    rows.check_longest(config, services)
    assert heard == ([] if told is None else [told])
    services.task = dataclasses.replace(services.task, agent="agent.py:play")  # makes its prompts
    rows.check_longest(config, services)
    assert heard == ([] if told is None else [told])


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_that_refuses_lengths_says_from_which_on(kind):
    """Otherwise it would never be asked."""
    found = settings_of(kind)
    refuses = found.check_longest is not EngineSettings.check_longest
    assert refuses == (found.most_tokens is not EngineSettings.most_tokens)


def test_the_shipped_model_goes_by_letters():
    from strop.training.learner.models import tokenizer_of

    assert Bounds(tokenizer_of("tiny", "")).text("3,5,7:22=") == 9


def test_what_was_made_lately_is_kept_up_to_a_size():
    made = []
    kept = Lately[int, str](most=5)

    def get(key, text):
        return kept.get(key, lambda: made.append(key) or text, len)

    assert [get(1, "abc"), get(2, "de"), get(1, "-")] == ["abc", "de", "abc"]
    assert (made, kept.held) == ([1, 2], 5)
    assert get(3, "f") == "f"  # no room: all others are forgotten
    assert get(1, "abc") == "abc"
    assert (made, kept.held) == ([1, 2, 3, 1], 4)


def test_any_order_of_uids_is_found():
    prompts = [Prompt(uid, str(uid), {}) for uid in (7, 2, 5)]
    ours = RunTexts(
        Task("t", prompts, [Prompt(3, "3", {})], [], ()), tokenizer(), Limits(1, 1, 9, 9, 1)
    )
    assert [ours.prompt(uid).prompt for uid in (2, 3, 5, 7)] == ["2", "3", "5", "7"]
    for uid in (0, 4, 8):
        with pytest.raises(KeyError):
            ours.prompt(uid)


def test_the_question_of_a_conversation_is_its_last_message():
    said = [{"role": "user", "content": text} for text in ("1", "2", "3")]
    ours = services_of([Prompt(0, said, {}), Prompt(1, "4", {})], Limits(1, 1, 9, 9, 1)).texts
    assert (ours.question(0), ours.question(1)) == ("3", "4")
