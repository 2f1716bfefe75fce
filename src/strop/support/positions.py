"""How long a sequence of a model may be."""

from collections.abc import Iterator, Mapping
from typing import Any


def context_of(config: Any) -> int | None:
    """Most tokens of a sequence, prompt and answer together; None: the configuration has no limit.

    With `longrope` positions (Phi-3 and others) it is where the model changes its angles: a forward
    pass turns those of all its sequences by its longest one, so beyond it log-probabilities would
    depend on the other sequences of a pass.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    for rope in _ropes(config):
        if "longrope" in (rope.get("rope_type"), rope.get("type")):
            original = getattr(config, "original_max_position_embeddings", None)
            limits.append(rope.get("original_max_position_embeddings", original))
    return min((int(limit) for limit in limits if limit), default=None)


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of rotary positions: of the model, or of each kind of its layers."""
    for name in ("rope_parameters", "rope_scaling"):
        found = getattr(config, name, None)
        if isinstance(found, Mapping):
            yield found
            yield from (each for each in found.values() if isinstance(each, Mapping))
