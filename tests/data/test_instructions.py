"""System and developer messages behind templates of published models, as in TRL."""

from importlib.resources import files

import pytest
from scripted_model import scripted_tokenizer

from strop.data.chat import Chat
from strop.data.prompts import Prompt

TEMPLATES = files("trl") / "chat_templates"
TOLD = (("developer", "a1"), ("system", "b2"), ("user", "c3"), ("system", "d4"),
        ("assistant", "e5"), ("developer", "f6"))  # fmt: skip
ALL_AS_SYSTEM = [("system" if role == "developer" else role, text) for role, text in TOLD]
ONE = [("system", "a1\n\nb2")]
BY_USER = [("user", "c3\n\nd4"), ("assistant", "e5"), ("user", "f6")]
SEEN = {
    "gemma4": list(TOLD),
    "lfm2": list(TOLD),
    "qwen2_5": ALL_AS_SYSTEM,
    "qwen3": ALL_AS_SYSTEM,
    "glm4moe": ALL_AS_SYSTEM,
    "deepseek_r1_distill": ONE + BY_USER,
    "qwen3_5_think": ONE + BY_USER,
    "qwen3_8": ONE + BY_USER,
    "qwen3_vl": ONE + BY_USER,
    "gemma3": ONE + BY_USER,
    "gptoss": [("developer", "a1\n\nb2"), *BY_USER],
}


@pytest.mark.parametrize("name", SEEN)
def test_every_message_is_shown(name):
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = scripted_tokenizer(("x",), template)
    tokenizer.bos_token = "<pad>"
    messages = [{"role": role, "content": text} for role, text in TOLD]
    put = Chat().put(Prompt(0, messages, {}), tokenizer).prompt
    assert [(each["role"], each["content"]) for each in put] == SEEN[name]
    shown = tokenizer.apply_chat_template(put, tokenize=False)
    found = [shown.find(text) for _, text in TOLD]
    assert -1 not in found
    assert found == sorted(found)
