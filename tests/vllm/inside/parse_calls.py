"""Runs in vLLM's Python: reads calls in texts with vLLM's parser of a form, as JSON."""

import json
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

TAGS = ("tool_call", "think", "arg_key", "arg_value")

given = json.load(sys.stdin)
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
tokenizer.add_tokens([AddedToken(f"<{slash}{tag}>") for tag in TAGS for slash in ("", "/")])
found = []
for text in given["texts"]:
    messages = [{"role": "user", "content": "x"}]
    request = ChatCompletionRequest(messages=messages, model="m", tools=given["tools"])
    parser = ToolParserManager.get_tool_parser(given["form"])(tokenizer, request.tools)
    calls = parser.extract_tool_calls(text, request).tool_calls
    found.append([[call.function.name, json.loads(call.function.arguments)] for call in calls])
print(json.dumps(found))
