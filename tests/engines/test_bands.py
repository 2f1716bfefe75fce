"""Attention reads rows of similar length together: fewer places, the same draws."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes.engine import sample
from fakes.models import FAMILIES, VOCAB, tiny

from strop.engines.base import Answer, Request
from strop.engines.local import ragged
from strop.engines.local.cache import TILE, Band, Bands
from strop.engines.local.engine import LocalEngine

LONG, SHORT = 60, 5


class Reading(LocalEngine):
    """Counts the places that its steps read, and those that are there; `call` as given."""

    def __init__(self, model: Any, call: int, **options: Any) -> None:
        super().__init__(model, **options)
        self.slots.bands.call = call
        self.read = self.there = 0
        decode = self.model.decode

        def counted(tokens: torch.Tensor, positions: torch.Tensor, bands: list[Band]) -> Any:
            self.read += sum((end - first) * used for first, end, used in bands)
            self.there += int((positions + 1).sum())
            return decode(tokens, positions, bands)

        self.model.decode = counted


def uneven(number: int) -> list[Request]:
    """Every other one goes on with what it has written before, as rollouts of earlier steps do."""
    generator = torch.Generator().manual_seed(0)
    sizes = [LONG if i % 2 else SHORT for i in range(number)]
    ids = [torch.randint(3, VOCAB, (size,), generator=generator).tolist() for size in sizes]
    return [Request(tuple(own), 8 + i % 5, seed=i) for i, own in enumerate(ids)]


def told(found: list[Answer], name: str) -> list[list[Any]]:
    return [[x for event in each.events for x in getattr(event, name)] for each in found]


def test_bands_are_cut_where_it_saves_more_than_a_call():
    bands = Bands(call=10)
    length = np.array([100] * 4 + [40] * 4 + [39] * 2)
    bands.part(length)
    # cut at 4: 4 * 100 + 6 * 40 = 640 of 1000; cutting off the last two would save 2
    assert bands.of(length) == [Band(0, 4, 100), Band(4, 10, 48)]  # 40 in whole tiles of 16
    assert bands.of(length + 9) == [Band(0, 4, 109), Band(4, 10, 64)]
    bands.part(length - np.array([0] * 9 + [20]))
    assert bands.of(length)[-1] == Band(9, 10, 48)
    for alike in (np.full(10, 100), np.array([100, 99] * 5), np.array([7])):
        bands.part(alike)
        assert bands.of(alike) == [Band(0, len(alike), int(alike[0]))]


def test_rows_change_places_when_their_order_has_cost_as_much():
    bands = Bands(call=10)
    length = np.array([100, 20] * 4)
    bands.part(length)
    # as they lie only the last is cut off: 7 * 100 + 20 = 720 places; in order 4 * 100 + 4 * 20
    waits = 0
    while (moves := bands.take_step()) is None:
        waits += 1
    source, target = moves
    # places 1 and 3 take long rows and 4 and 6 short ones: 4 rows of up to 100 places, each 3
    assert (source.tolist(), target.tolist()) == ([4, 6, 1, 3], [1, 3, 4, 6])
    assert waits == 3 * 400 // (720 - 480) - 1
    length[target] = length[source]
    assert length.tolist() == [100] * 4 + [20] * 4
    bands.part(length)
    assert bands.take_step() is None
    assert bands.of(length) == [Band(0, 4, 100), Band(4, 8, 2 * TILE)]
    assert bands.sort(np.array([20, 100, 21, 100, 22, 20])).tolist() == [1, 3, 0, 2, 4, 5]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_one_band(family):
    model = tiny(family)
    wanted = uneven(12)
    whole, parted = (Reading(model, call, num_slots=8) for call in (10**9, 1))
    expected, found = sample(whole, wanted), sample(parted, wanted)
    assert parted.notes == ()
    assert told(found, "ids") == told(expected, "ids")
    for own, others in zip(told(found, "logp"), told(expected, "logp"), strict=True):
        assert own == pytest.approx(others, abs=1e-9)
    # rows come in order; those that follow them are out of it for some steps
    assert parted.there == whole.there
    assert parted.read < 1.3 * parted.there < whole.read


def test_rows_with_drafts_are_read_in_bands_too():
    model = tiny("gemma3")
    wanted = [Request((3, 4, 5) * (1 + 15 * (i % 2)), 30, seed=i // 2) for i in range(12)]
    found = []
    for call in (10**9, 1):
        engine = LocalEngine(model, num_slots=12, speculate=3)
        engine.slots.bands.call = call
        engine.speculation.step_cost = 1e9
        found.append(sample(engine, wanted))
        assert engine.drafts[0] > 0
    assert told(found[0], "ids") == told(found[1], "ids")


def test_rows_that_fill_holes_stay_in_their_band():
    bands = Bands(call=10)
    bands.part(np.array([100] * 4 + [40] * 4 + [10] * 4))
    assert bands.cuts.tolist() == [0, 4, 8]
    # places 1 and 5 are left: 3 fills 1, then each band has lost a place before it and one inside
    source, target = bands.close(np.array([0, 2, 3, 4, 6, 7, 8, 9, 10, 11]))
    assert (source.tolist(), target.tolist()) == ([3, 6, 7, 10, 11], [1, 3, 5, 6, 7])
    assert bands.cuts.tolist() == [0, 3, 6]
    # a whole band is left, and one row of the last
    source, target = bands.close(np.array([0, 1, 2, 6, 8, 9]))
    assert (source.tolist(), target.tolist()) == ([6, 8, 9], [3, 4, 5])
    assert bands.cuts.tolist() == [0, 3]
    # of one band the last rows fill the holes
    bands.clear()
    assert [x.tolist() for x in bands.close(np.array([0, 3, 4, 5]))] == [[4, 5], [1, 2]]


def test_bands_outlast_the_ends_of_rows():
    """Long rows end first, in the middle of their band; none of the others is read any longer."""
    model = tiny("qwen3")
    ids = [tuple(3 + (i + k) % 9 for k in range(LONG if i < 6 else SHORT)) for i in range(12)]
    wanted = [Request(own, 2 + i if i < 6 else 14, seed=i) for i, own in enumerate(ids)]
    engine = Reading(model, 1, num_slots=12)
    told_here = told(sample(engine, wanted), "ids")
    assert told_here == told(sample(Reading(model, 10**9, num_slots=12), wanted), "ids")
    assert engine.read < 1.3 * engine.there


def test_layers_that_take_no_bands_read_all_and_it_is_said(monkeypatch):
    def refuses(*args: Any, **options: Any) -> Any:
        raise TypeError("strop_bands")

    model = tiny("qwen3")
    monkeypatch.setitem(ragged.AttentionInterface._global_mapping, ragged.NAME, refuses)
    engine = Reading(model, 1, num_slots=8)
    found = sample(engine, uneven(8))
    (note,) = engine.notes
    assert "Qwen3ForCausalLM cannot read those of one length together, TypeError" in note
    assert "its attention is eager" in LocalEngine(tiny("llama", "eager")).notes[0]
    monkeypatch.undo()
    assert told(found, "ids") == told(sample(Reading(model, 1, num_slots=8), uneven(8)), "ids")


def test_prompts_of_about_one_length_make_a_pass(monkeypatch):
    engine = LocalEngine(tiny("qwen3", context=512), num_slots=64)
    passes: list[list[int]] = []
    fill = engine.model._fill

    def counted(parts: list[Any]) -> None:
        passes.append([part.end - part.start for part in parts])
        fill(parts)

    monkeypatch.setattr(engine.model, "_fill", counted)
    # all but the last token; of 4 * 100 and 6 * 20 one pass would have 480 for nothing, and of
    # 6 * 20 and 2 * 12 only 16; 30 of 120 are more than 2048 tokens
    sizes = [13, 21, 101] * 2 + [101, 21] * 2 + [21] * 2 + [121] * 30
    sample(
        engine, [Request((3 + i % 20, *[4] * (n - 2), 5 + i // 20), 1) for i, n in enumerate(sizes)]
    )
    assert passes == [[120] * 15, [120] * 15, [100] * 4, [20] * 6 + [12] * 2]
