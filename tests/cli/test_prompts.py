"""Processing of users' prompts: characters, length, chat, tools; through the command line."""

import json
import re

import pytest
from models import save_model, tokenizer

TEMPLATE = (
    "{% for tool in tools or [] %}/{{ tool.name }}{% endfor %}"
    "{% for m in messages %}{{ {'system': '*', 'user': '(', 'assistant': ')'}[m.role] }}"
    "{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}){% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
)
REWARD = '''
import json


def long(queries, prompts, labels=None):
    """Tells the prompts as the model saw them; longer answers are better."""
    with open("seen.txt", "a") as file:
        file.writelines(json.dumps(prompt) + "\\n" for prompt in prompts)
    return {"rewards": [float(len(q) - len(p)) for q, p in zip(queries, prompts)]}


def same(completions, answer, **columns):
    """Whether the text is the answer."""
    return [float(c == right) for c, right in zip(completions, answer)]
'''
FEW = [
    "training.steps=1", "evaluation.every=0", "rollout.max_tokens=4",
    "sampling.num_prompts=2", "sampling.num_rollouts=2",
]  # fmt: skip


def write(folder, rows, name="data.jsonl"):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A model whose tokenizer has a chat template."""
    folder = save_model(tmp_path_factory.mktemp("chatty") / "model")
    ours = tokenizer()
    ours.chat_template = TEMPLATE
    ours.save_pretrained(folder)
    return folder


@pytest.fixture
def train(strop, chatty, tmp_path, monkeypatch):
    """Runs `strop train` over rows; returns what was said and the prompts that the model saw."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARD)

    def run(rows, *words, model=chatty):
        data = write(tmp_path, rows)
        named = ["--model", model] if model else []
        result = strop(
            "train", *named, "--data", data, "--reward", "rewards.py:long", *FEW, "--out", "run",
            *words,
        )  # fmt: skip
        if result.code:
            assert (result.code, result.err.count("\n")) == (2, 1), result.err
            assert not (tmp_path / "run").exists()
            return result, set()
        seen = tmp_path / "seen.txt"
        lines = seen.read_text().splitlines() if seen.exists() else []
        return result, set(map(json.loads, lines))

    return run


ASKED = [{"question": "1+2", "answer": "3"}, {"question": "2+2", "answer": "4"}]
TEXTS = [{"prompt": "1+2"}, {"prompt": "2+2"}]
TALKS = [
    {"prompt": [{"role": "user", "content": "1+2"}]},
    {"prompt": [{"role": "system", "content": "7"}, {"role": "user", "content": "2+2"}]},
]
NOTE = "2 of 2 prompts are plain text, and go to the model without its chat template"


# ---- chat


@pytest.mark.parametrize(
    ("rows", "words", "seen"),
    [
        (ASKED, [], {"(1+2\n)", "(2+2\n)"}),
        (ASKED, ["data.prompt_as=text"], {"1+2", "2+2"}),
        (ASKED, ["data.prompt_column=answer"], {"(3\n)", "(4\n)"}),
        (TEXTS, ["data.prompt_as=text"], {"1+2", "2+2"}),
        (TEXTS, ["data.prompt_as=messages"], {"(1+2\n)", "(2+2\n)"}),
        (TEXTS, ["data.system_prompt=5"], {"*5\n(1+2\n)", "*5\n(2+2\n)"}),
        (TALKS, ["data.system_prompt=5"], {"*5\n(1+2\n)", "*7\n(2+2\n)"}),  # the row's own wins
        (TALKS, [], {"(1+2\n)", "*7\n(2+2\n)"}),
        (ASKED, ["data.chat_template_kwargs={enable_thinking: false}"], {"(1+2\n)-", "(2+2\n)-"}),
        (ASKED, ["data.chat_template_kwargs={enable_thinking: true}"], {"(1+2\n)", "(2+2\n)"}),
        (ASKED, ["data.tools=tools.json"], {"/8/9(1+2\n)", "/8/9(2+2\n)"}),
    ],
)
def test_what_the_model_is_told(train, tmp_path, rows, words, seen):
    (tmp_path / "tools.json").write_text('[{"name": "8"}, {"name": "9"}]')
    result, prompts = train(rows, *words)
    assert result.code == 0, result.err
    assert prompts == seen
    assert "plain text" not in result.out


def test_text_beside_a_chat_template_is_warned_about_once(train, chatty, lab, strop):
    result, prompts = train(TEXTS)
    assert prompts == {"1+2", "2+2"}
    assert result.out.count(NOTE) == 1
    assert "data.prompt_as=messages" in result.out
    assert result.out.index(NOTE) < result.out.index("step 1/1")
    words = ["doctor", "--data", "data.jsonl", "rollout.max_tokens=4"]
    told = strop(*words, "--model", chatty).out
    assert NOTE in told
    assert NOTE not in strop(*words, "--model", chatty, "data.prompt_as=messages").out


def test_an_agent_writes_its_own_prompts(train, tmp_path):
    (tmp_path / "agent.py").write_text(
        "from openai import OpenAI\n\n\n"
        "def play(row):\n"
        "    asked = [{'role': 'user', 'content': row['prompt']}]\n"
        "    OpenAI().chat.completions.create(model='policy', messages=asked)\n"
        "    return 1.0\n"
    )
    result, _ = train(TEXTS, "data.task=agent:agent.py:play")
    assert result.code == 0, result.err
    assert "plain text" not in result.out


def test_a_model_without_a_template_reads_questions_as_text(train, lab):
    result, prompts = train(ASKED, model=lab.model)
    assert prompts == {"1+2", "2+2"}
    assert "plain text" not in result.out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["data.prompt_as=chat"], ["data.prompt_as = 'chat'", "'messages'"]),
        (["data.prompt_as=text", "data.system_prompt=5"], ["data.system_prompt out"]),
        (["data.chat_template_kwargs={enable_thinkng: false}"], ["reads no 'enable_thinkng'"]),
        (["data.chat_template_kwargs={tokenize: false}"], ["tokenize is set by strop"]),
        (["data.tools=none.json"], ["cannot read data.tools: none.json"]),
        (["data.tools=data.jsonl"], ["data.tools: data.jsonl is not JSON"]),
        (["data.tools=number.json"], ["data.tools: number.json must hold a list of objects"]),
        (["data.system_prompt=Be brief"], ["data.system_prompt has letters", "'B', 'e'"]),
        (["data.prompt_column=prompt"], []),
        (["data.prompt_column=questoin"], ["did you mean 'question'", "data.prompt_column"]),
    ],
)
def test_chat_options_that_cannot_be(train, tmp_path, words, parts):
    (tmp_path / "number.json").write_text("3")
    result, _ = train(ASKED, *words)
    assert (result.code == 2) == bool(parts)
    for part in parts:
        assert part in result.err


def test_a_template_is_needed(train, lab):
    for option in ("data.system_prompt=5", "data.prompt_as=messages"):
        result, _ = train(ASKED, option, model=lab.model)
        assert f"{option.partition('=5')[0]} needs a chat template" in result.err
        assert "model.chat_template=FILE" in result.err


def test_a_template_that_refuses_the_messages_names_the_row(train, tmp_path):
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}("
    (tmp_path / "strict.jinja").write_text(strict)
    result, _ = train(ASKED, "data.system_prompt=5", "model.chat_template=strict.jinja")
    assert "refuses the messages of data.jsonl row 1: no system" in result.err


def test_eval_and_sample_ask_as_the_run_did(train, strop, chatty):
    words = ["data.system_prompt=5", "data.chat_template_kwargs={enable_thinking: false}"]
    train(ASKED, *words)
    alike = []
    for source, more in (
        ("run", []),
        (chatty, [text for word in words for text in ("--set", word)]),
        (chatty, []),
    ):
        result = strop(
            "eval", source, "--data", "data.jsonl", "--reward", "rewards.py:same", "--samples", "4",
            "--k", "1", "--json", "--max-tokens", "4", "--engine", "local", *more,
        )  # fmt: skip
        alike.append((result.code, result.out if source == chatty else ""))
        talk = strop("sample", source, "1+2", "--max-tokens", "4", *more)
        assert talk.code == 0, talk.err
    assert [code for code, _ in alike] == [0, 0, 0]
    assert alike[1][1] != alike[2][1]  # another prompt, other answers
    refused = strop("eval", chatty, "--data", "data.jsonl", "--set", "data.sytem_prompt=5")
    assert "did you mean data.system_prompt" in refused.err
    for setting in ("sampling.foo=1", "advantage.eps=1", "selection=keep_origins", "training.lr=1"):
        refused = strop("eval", chatty, "--set", setting)
        assert f"{setting.partition('=')[0]} is a setting of training: " in refused.err


# ---- characters


def test_letters_that_the_model_does_not_know_are_named_before_the_first_step(train, lab):
    rows = [{"prompt": "3+5="}, {"prompt": "What is 3+5?"}]
    result, _ = train(rows, model=lab.model)
    assert "data.jsonl row 2, column prompt, has letters that the model's tokenizer" in result.err
    assert "<unk>: 'W', 'h', 'a', 't', 'i', 's', '?' in 'What is 3+5?'" in result.err
    assert "it knows '\\n ()*+,-/0123456789:=' alone" in result.err
    assert "--model" in result.err
    result, _ = train([{"question": "3+5=", "answer": ""}, {"question": "3x", "answer": ""}])
    assert "row 2, column question, has letters" in result.err


def test_letters_of_validation_files_and_given_answers(train, tmp_path, lab):
    write(tmp_path, [{"prompt": "1"}, {"prompt": "y"}], "held.jsonl")
    result, _ = train(TEXTS, "--validation", "held.jsonl", "evaluation.every=1", model=lab.model)
    assert "held.jsonl row 2, column prompt, has letters" in result.err
    result, _ = train([{"prompt": "1", "completion": "1z"}], "sft", model=lab.model)
    assert "data.jsonl row 1, column completion, has letters" in result.err


def test_letters_in_eval_and_sample(train, strop, lab, tmp_path):
    write(tmp_path, [{"prompt": "1"}, {"prompt": "é"}])
    (tmp_path / "rewards.py").write_text(REWARD)
    result = strop("sample", lab.model, "3+é", "--max-tokens", "4")
    assert (result.code, result.out) == (2, "")
    assert "error: the prompt has letters" in result.err
    words = ["--data", "data.jsonl", "--reward", "rewards.py:long", "--max-tokens", "4"]
    result = strop("eval", lab.model, *words)
    assert (result.code, result.out) == (2, "")
    assert "data.jsonl row 2, column prompt, has letters" in result.err


# ---- the model


def test_a_forgotten_model_is_said(train, strop):
    result, _ = train(TEXTS, model=None)
    note = "no --model was given: this trains tiny, the model that ships with strop"
    assert note in result.out
    again = strop("train", "--resume", "run", "training.steps=2")
    assert again.code == 0, again.err
    assert note not in again.out


def test_a_model_that_was_named_is_not_remarked_on(train):
    assert "was given" not in train(TEXTS, model="tiny")[0].out


# ---- length


def test_rows_that_are_too_long_are_left_out_and_counted(train, strop, lab, tmp_path):
    long = {"prompt": "1+1+1+1"}
    write(tmp_path, [*TEXTS, long], "held.jsonl")
    words = ["--validation", "held.jsonl", "data.max_prompt_tokens=3", "evaluation.every=1"]
    result, _ = train([*TEXTS, long, long], *words, model=lab.model)
    assert "data.jsonl row 3 is 7 tokens long, the limit is 3" in result.err
    assert "data.overlong=drop" in result.err
    result, prompts = train([*TEXTS, long, long], *words, "data.overlong=drop", model=lab.model)
    assert result.code == 0, result.err
    assert "grpo on data: 2 prompts" in result.out
    assert "2 of 4 rows of the split train are too long and left out" in result.out
    assert "1 of 3 rows of the split validation are too long and left out" in result.out
    assert prompts == {"1+2", "2+2"}
    data = json.loads((tmp_path / "run/data.json").read_text())
    assert (data["train"]["rows"], data["validation"]["rows"]) == (2, 2)
    more = strop("train", "--resume", "run", "training.steps=2")
    assert more.code == 0, more.err
    words = ["--split", "validation", "--json", "--samples", "2", "--k", "1", "--trust-files"]
    found = strop("eval", "run", *words)
    assert found.code == 0, found.err
    assert "1 of 3 rows of the split validation are too long and left out" in found.err
    assert json.loads(found.out)["num_rollouts"] == 4


def test_given_answers_that_are_too_long_are_left_out(train, lab):
    rows = [{"prompt": "1", "completion": "2"}, {"prompt": "1", "completion": "2" * 70}]
    words = ["sft", "sampling.num_rollouts=1", "rollout.max_tokens=0"]
    result, _ = train(rows, *words, model=lab.model)
    assert "the completion of data.jsonl row 2 is 71 tokens long" in result.err
    result, _ = train(rows, *words, "data.overlong=drop", model=lab.model)
    assert result.code == 0, result.err
    assert "1 of 2 rows of the split train" in result.out


def test_no_row_left(train, lab):
    result, _ = train(TEXTS, "data.max_prompt_tokens=2", "data.overlong=drop", model=lab.model)
    assert re.search(r"no row of the split train: a prompt may have 2 tokens", result.err)
