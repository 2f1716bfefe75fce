"""A local engine on which some requests fail."""

from dataclasses import replace

from strop.engines.local.engine import LocalEngine
from strop.engines.open import EngineSettings
from strop.engines.rules import BanTokens


class BrittleEngine(LocalEngine):
    """Every fourth request fails: its rule knows another vocabulary."""

    def start(self, id, request, source=None):
        rules = (*request.rules, BanTokens((10**6,))) if id % 4 == 1 else request.rules
        super().start(id, replace(request, rules=rules), source)


class BrittleSettings(EngineSettings):
    """The engine `brittle`, where a test puts it into the table."""

    def open(self, model, tokenizer, *, num_slots, context_length):
        return BrittleEngine(model, tokenizer, num_slots=num_slots, context_length=context_length)
