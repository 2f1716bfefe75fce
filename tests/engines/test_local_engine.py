"""The life of a request in the local engine: stop, continue, branch, abort, weights, refusals."""

import math
import zlib
from unittest import mock

import pytest
import torch
from fakes.engine import Driven, in_pieces, sample
from fakes.models import VOCAB, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, BloomConfig

from strop.engines.base import Event, Request
from strop.engines.local import causal
from strop.engines.local.cache import Attention
from strop.engines.local.engine import LocalEngine
from strop.engines.rules import TopK
from strop.support.errors import UserError

MODEL = tiny("qwen3")


def text(ids) -> str:
    """Each token two letters, so that a stop string may span tokens."""
    return "".join(chr(97 + id) * 2 for id in ids)


def local(num_slots: int = 4, **fields) -> LocalEngine:
    return LocalEngine(fields.pop("model", MODEL), decode=text, num_slots=num_slots, **fields)


def engine(num_slots: int = 4, **fields) -> Driven:
    return Driven(local(num_slots, **fields))


def tokens(e: Driven, id: int) -> list[int]:
    """Prompt and new tokens by now."""
    return e._tokens(e.known[id]) if id in e.open else list(e.answers[id].sequence)


def new_ids(events: list[Event]) -> list[int]:
    return [id for event in events for id in event.ids]


def run(request: Request, **fields) -> list[int]:
    e = engine(**fields)
    id = e.submit(request)
    return new_ids(e.finish()[id])


def test_stop_id_ends_and_is_kept():
    free = run(Request((3, 4), 30, seed=5))
    stop = free[7]
    assert run(Request((3, 4), 30, seed=5, stop_ids=(stop,))) == free[: free.index(stop) + 1]


def test_ends_are_named():
    e = engine(num_slots=8, context_length=10)
    long = e.submit(Request((3, 4), 30, seed=5))
    short = e.submit(Request((3, 4), 3, seed=5))
    stop = e.submit(Request((3, 4), 8, seed=5, stop_ids=tuple(range(VOCAB))))
    heard = e.finish()
    assert [heard[id][-1].ended for id in (long, short, stop)] == ["length", "length", "stop"]
    assert [len(new_ids(heard[id])) for id in (long, short, stop)] == [8, 3, 1]


@given(st.integers(0, 200), st.integers(0, 12), st.integers(1, 5), st.integers(0, 1))
@settings(max_examples=8)
def test_stop_string_spanning_tokens(seed, start, length, offset):
    free = run(Request((3, 4), 20, seed=seed))
    string = text(free)[2 * start + offset : 2 * start + offset + length]
    got = run(Request((3, 4), 20, seed=seed, stop_strings=("no such text", string)))
    ends = [n for n in range(1, 21) if string in text(free[:n])]
    assert got == free[: ends[0]]


@pytest.mark.parametrize(("num_slots", "every"), [(1, 5), (3, 1), (16, 2)])
def test_pieces_equal_unbroken(num_slots, every):
    wanted = [Request((3, 4 + i % 2), 5 + i % 7, seed=i, stop_ids=(1,)) for i in range(10)]
    expected = [run(request) for request in wanted]
    found = in_pieces(local(num_slots), [(request, every) for request in wanted])
    assert [list(answer.ids) for answer in found] == expected
    for answer in found:
        assert all(len(event.ids) == every for event in answer.events[:-1])
        assert [event.ended for event in answer.events[:-1]] == [""] * (len(answer.events) - 1)


def test_what_goes_on_takes_changes():
    e = engine()
    id = e.submit(Request((3, 4), 3, seed=1, keep=True))
    e.finish()
    first = e.answers[id]
    more = e.submit(first.more(3, temperature=0.0), (id, 5))
    assert new_ids(e.finish()[more]) == run(Request(first.sequence, 3, temperature=0.0))


@given(
    st.integers(1, 5),
    st.integers(0, 8),
    st.lists(st.integers(0, VOCAB - 1), max_size=3),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=12)
def test_a_branch_equals_the_request_alone(num_slots, new_kept, given, keep, ended):
    e = engine(num_slots)
    others = [e.submit(Request((7, 8, 9), 12, seed=70 + i)) for i in range(2)]
    parent = e.submit(Request((3, 4, 5), 9, seed=2, keep=keep))
    if ended:
        e.finish()
    else:
        while parent in e.open and len(tokens(e, parent)) < 3 + new_kept:
            e.step()
    at = 3 + new_kept
    request = Request((*tokens(e, parent)[:at], *given), 6, seed=99)
    branch = e.submit(request, (parent, at))
    heard = e.finish()
    assert new_ids(heard[branch]) == run(request)
    assert all(e.answers[id].ended == "length" for id in (*others, parent))


def test_a_branch_with_its_parents_seed_repeats_it():
    e = engine()
    parent = e.submit(Request((3, 4, 5), 9, seed=2))
    e.finish()
    whole = tokens(e, parent)
    same = e.submit(Request(tuple(whole[:6]), 6, seed=2), (parent, 6))
    assert new_ids(e.finish()[same]) == whole[6:]


def prefilled(e: LocalEngine, monkeypatch) -> list[int]:
    """The widths of all parts that the engine computes from now on, other than token by token."""
    widths: list[int] = []
    fill = e.model.fill

    def spy(parts, max_tokens):
        widths.extend(part.end - part.start for part in parts)
        fill(parts, max_tokens)

    monkeypatch.setattr(e.model, "fill", spy)
    return widths


def test_a_branch_of_a_running_row_copies_its_cache(monkeypatch):
    e = engine()
    parent = e.submit(Request((3, 4, 5), 20, seed=2))
    for _ in range(6):
        e.step()
    widths = prefilled(e, monkeypatch)
    started = tokens(e, parent)[:8]
    e.submit(Request((*started, 1), 9, seed=1), (parent, 8))  # eight cached, 1 is the next input
    e.submit(Request((*started, 1, 2, 3), 9, seed=1), (parent, 8))  # two given ones to compute
    e.step()
    assert widths == [2]


@pytest.mark.parametrize("keep", [False, True])
def test_a_kept_row_saves_the_prefill_of_what_goes_on_from_it(monkeypatch, keep):
    e = engine()
    parent = e.submit(Request((3, 4, 5), 6, seed=2, keep=keep))
    e.finish()
    widths = prefilled(e, monkeypatch)
    e.submit(Request((*tokens(e, parent)[:7], 1), 1, seed=1), (parent, 7))
    e.finish()
    assert widths == ([] if keep else [7])


@given(st.integers(1, 6), st.lists(st.integers(0, 2), min_size=4, max_size=4), st.integers(3, 9))
@settings(max_examples=6)
def test_branches_of_kept_rows_are_right_when_slots_are_short(num_slots, branches, at):
    e = engine(num_slots)
    prompts = [(3, 4, 5), (3, 4, 5), (6, 7), (8,)]
    parents = [e.submit(Request(ids, 8, seed=i, keep=True)) for i, ids in enumerate(prompts)]
    e.finish()
    wanted = {}
    for i, (parent, number) in enumerate(zip(parents, branches, strict=True)):
        above = tokens(e, parent)
        for k in range(number):
            seed = 50 + 10 * i + k
            request = Request((*above[:at], *(1,) * k), 5, seed=seed, keep=True)
            branch = e.submit(request, (parent, min(at, len(above))))
            wanted[branch] = run(request)
    fresh = e.submit(Request((3, 4, 5), 5, seed=7))  # shares a prompt with two parents
    wanted[fresh] = run(Request((3, 4, 5), 5, seed=7))
    heard = e.finish()
    assert {id: new_ids(heard[id]) for id in wanted} == wanted


def test_a_lone_request_goes_on_in_its_ended_sources_slot(monkeypatch):
    e = engine(num_slots=3)
    parents = [e.submit(Request((3 + i, 4), 6, seed=i, keep=True)) for i in range(3)]
    e.finish()
    widths = prefilled(e, monkeypatch)
    for parent in parents:
        e.submit(Request((*tokens(e, parent), 1, 2), 3, seed=9), (parent, 8))
    e.finish()
    assert widths == [2, 2, 2]


def test_a_slot_that_went_to_a_branch_serves_later_branches_only_as_far_as_both_agree():
    e = engine(num_slots=2)
    parent = e.submit(Request((3, 4, 5), 20, seed=2, keep=True))
    e.finish()
    above = tokens(e, parent)
    early, late = Request((*above[:8], 1, 2, 3), 60, seed=3), Request((*above[:16], 4), 9, seed=4)
    e.submit(early, (parent, 8))  # goes on in the parent's slot, because slots are short
    others = [e.submit(Request((6, 7), 4, seed=seed)) for seed in range(2)]
    while any(id in e.open for id in others):
        e.step()
    branch = e.submit(late, (parent, 16))
    assert new_ids(e.finish()[branch]) == run(late)


def test_equal_prompts_are_prefilled_once(monkeypatch):
    e = engine(num_slots=6)
    widths = prefilled(e, monkeypatch)
    for seed in range(8):
        e.submit(Request((3, 4, 5, 6), 2 + seed, seed=seed))
        e.submit(Request((3, 4, 5, 7), 2 + seed, seed=seed))
    e.finish()
    assert widths == [3, 3]


def test_a_group_shares_its_prompt_though_it_begins_as_a_kept_row(monkeypatch):
    """Such as with a system prompt: what a row of the same prompt has is more than that."""
    e = engine(num_slots=8)
    kept = e.submit(Request((3, 4, 5, 6), 4, seed=1, keep=True))
    e.finish()
    widths = prefilled(e, monkeypatch)
    request = Request((3, 4, 7, 8, 9, 10), 3, seed=2)
    ids = [e.submit(request, (kept, 2)) for _ in range(3)]
    assert {e.known[id].group for id in ids} == {e.known[ids[0]].prompt_hash}
    e.step()
    late = e.submit(request, (kept, 2))
    heard = e.finish()
    assert widths == [3]  # of the first one's, which copies the two; the last token is read later
    assert all(new_ids(heard[id]) == run(request) for id in (*ids[1:], late))


def test_no_hash_of_a_prompt_depends_on_the_process():
    e = local()  # a string's own hash does
    e.start(0, Request((3, 4), 2, weights="one"))
    assert e.known[0].prompt_hash == hash((zlib.crc32(b"one"), (3, 4)))


def test_a_cancelled_request_frees_the_slot_and_tells_its_tokens():
    e = engine(num_slots=1)
    running, waiting = (e.submit(Request((3, 4), 20, seed=seed)) for seed in (1, 2))
    for _ in range(5):
        assert e.step() == []
    assert list(e.cancel(running).ids) == run(Request((3, 4), 20, seed=1))[:5]
    assert list(e.finish()) == [waiting]  # nothing more is heard of the cancelled one
    started = e.submit(Request((3, 4), 2))
    e.step()
    e.load_weights(None, 1)  # what it has is reported, and not yet told
    assert len(e.cancel(started).ids) == 1
    assert e.engine.poll() == []
    assert (e.known, list(e.waiting)) == ({}, [])


def test_requests_that_were_let_in_as_an_interrupt_came_are_cancelled(monkeypatch):
    e = engine(num_slots=2)
    ids = [e.submit(Request((3, 4), 3, seed=seed)) for seed in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "_fill", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            e.step()
    assert [tuple(e.cancel(id).ids) for id in ids] == [()] * 3
    assert (e.known, list(e.waiting)) == ({}, [])
    after = e.submit(Request((3, 4), 3, seed=1))
    assert new_ids(e.finish()[after]) == run(Request((3, 4), 3, seed=1))


@pytest.mark.parametrize("forgets", ["cancel", "forget"])
def test_a_kept_cache_is_held_until_it_is_let_go_of(forgets):
    e = engine(num_slots=2)
    id, other = (e.submit(Request((3, 4), 3, seed=n, keep=not n)) for n in range(2))
    whole = e.finish()
    assert list(e.known) == [id] != [other]
    assert e.slots.table["taken"].sum() == 1
    getattr(e.engine, forgets)(*([id] if forgets == "cancel" else []))
    assert not e.slots.table["taken"].any()
    assert e.engine.cancel(id) == []
    started = (3, 4, *new_ids(whole[id])[:2])
    more = e.submit(Request(started, 3, seed=5), (id, 4))  # as if there were no source
    assert new_ids(e.finish()[more]) == run(Request(started, 3, seed=5))


def test_new_weights_change_version_and_distribution():
    old, new = tiny("qwen3", seed=1), tiny("qwen3", seed=2)
    e = engine(num_slots=2, model=tiny("qwen3", seed=1), version=7)
    wanted = [Request((3, 4), 8, seed=seed, want=frozenset({"entropy"})) for seed in range(3)]
    ids = [e.submit(request) for request in wanted]
    early = [event for _ in range(3) for event in e.step()]
    assert early == []
    e.load_weights(new.state_dict(), 8)
    heard = e.finish()
    for id, request in zip(ids, wanted, strict=True):
        before = [x for event in heard[id] if event.version == 7 for x in event.ids]
        after = [x for event in heard[id] if event.version == 8 for x in event.ids]
        assert len(before) == (3 if id < 2 else 0)
        assert before == run(Request((3, 4), 8, seed=request.seed), model=old)[: len(before)]
        # the tokens after come from the new weights, on a cache computed by the new weights
        assert after == run(Request((3, 4, *before), 8 - len(before), seed=request.seed), model=new)
    assert run(Request((3, 4), 8, seed=0), model=new) != run(Request((3, 4), 8, seed=0), model=old)


def test_weights_changed_in_place():
    model, new = tiny("qwen3", seed=1), tiny("qwen3", seed=2)
    e = engine(model=model)
    model.load_state_dict(new.state_dict())
    e.load_weights(None, 3)
    id = e.submit(Request((3, 4), 8, seed=0))
    events = e.finish()[id]
    assert new_ids(events) == run(Request((3, 4), 8, seed=0), model=new)
    assert events[0].version == 3


def test_weights_must_fit():
    e = engine(model=tiny("gpt2"))
    state = e.model.model.state_dict()
    del state["lm_head.weight"]  # tied to the embedding: may be left out
    e.load_weights(state, 1)
    del state["transformer.ln_f.bias"]
    with pytest.raises(UserError, match="1 missing"):
        e.load_weights(state, 2)
    with pytest.raises(UserError, match="1 unknown"):
        e.load_weights({**e.model.model.state_dict(), "x": torch.zeros(1)}, 2)
    assert e.version == 1


def test_seeds_are_taken_modulo_64_bits():
    assert run(Request((3, 4), 8, seed=-1)) == run(Request((3, 4), 8, seed=2**64 - 1))
    assert run(Request((3, 4), 8, seed=1)) != run(Request((3, 4), 8, seed=2))


def test_frequencies_of_the_first_token():
    number = 4000
    e = local(num_slots=500)
    found = sample(e, [Request((3, 4), 1, seed=seed) for seed in range(number)])
    count = torch.bincount(torch.tensor([f.events[0].ids[0] for f in found]), minlength=VOCAB)
    with torch.no_grad():
        expected = MODEL(torch.tensor([[3, 4]])).logits[0, -1].softmax(-1) * number
    likely = expected >= 5
    chi = ((count - expected)[likely] ** 2 / expected[likely]).sum()
    assert likely.sum() >= 5
    assert chi < 2 * likely.sum() + 15  # far beyond the 0.1% point for these degrees of freedom


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ids": ()}, "empty prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"want": frozenset({"logp"})}, "choose from"),
        ({"want": frozenset({"top"})}, "num_top"),
        ({"stop_strings": ("",)}, "empty string"),
        ({"ids": (1,) * 64}, "context 64"),
        ({"ids": (VOCAB,)}, "outside"),
        ({"ids": (1, -1)}, "outside"),
        ({"stop_ids": (-1,)}, "outside"),
        ({"num_top": VOCAB + 1}, f"num_top is {VOCAB + 1}, and the model has {VOCAB} tokens"),
    ],
)
def test_refusals(fields, words):
    with pytest.raises(UserError, match=words):
        engine().submit(Request(**{"ids": (1,), "max_tokens": 4, **fields}))


def test_a_long_stop_string_is_found_beside_a_short_one():
    request = Request((1,), 20, stop_strings=("zz", "abcdefgh"))
    said = b"xabcdefgh"  # a token a letter
    assert request.is_stopped(said, lambda ids: bytes(ids).decode())
    assert not request.is_stopped(said[:-1], lambda ids: bytes(ids).decode())


def test_a_stop_string_is_looked_for_in_the_newest_tokens_alone(monkeypatch):
    """How much is read at each token of an answer does not grow with the answer."""
    read, tokens = [], LocalEngine._tokens

    def noted(self, *given):
        read.append(tokens(self, *given))
        return read[-1]

    monkeypatch.setattr(LocalEngine, "_tokens", noted)
    request = Request((3, 4), 40, seed=5, stop_strings=("no such text",))
    found = run(request)
    assert len(found) == len(read) == 40
    assert read == [found[max(n - request.window, 0) : n] for n in range(1, 41)]


def test_stop_strings_need_text():
    with pytest.raises(UserError, match="tokenizer"):
        LocalEngine(MODEL).start(0, Request((1,), 4, stop_strings=("a",)))


def test_attention_that_cannot_be_masked_is_refused():
    model = tiny("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UserError, match="attn_implementation='sdpa'"):
        LocalEngine(model)


def test_broken_logits_are_reported():
    model = tiny("llama")
    e = engine(model=model)
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)
    ids = [e.submit(Request((3, 4), 2)), e.submit(Request((5,), 2, rules=(TopK(3),)))]
    for id, events in e.finish().items():
        (event,) = events
        assert (event.ids, event.ended) == ((), "failed")
        assert ("TopK(k=3)" in event.why) == (id == ids[1])
        assert "logits are not finite" in event.why
    assert not e.slots.table["taken"].any()
    with pytest.raises(UserError, match=r"all 2 requests failed, the first: .*not finite"):
        sample(e, [Request((3, 4), 2), Request((5,), 2)])


def test_an_error_of_the_first_pass_is_raised_as_it_is(monkeypatch):
    e = local()

    def decode(*given):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(e.model, "decode", decode)
    with pytest.raises(RuntimeError, match="out of memory"):
        sample(e, [Request((3, 4), 2, want=frozenset({"logp_model", "entropy"}))])
    assert not e.slots.table["taken"].any()


def test_architectures_that_cannot_be_cached_are_refused():
    shared = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2}
    bloom = BloomConfig(**shared, n_head=2)  # its masks make its position bias
    with pytest.raises(UserError, match="can't drive a 'bloom' model"):
        LocalEngine(AutoModelForCausalLM.from_config(bloom).eval())
    with pytest.raises(UserError, match="Linear has no"):
        LocalEngine(torch.nn.Linear(2, 2))


def test_a_model_is_tried_unless_one_of_its_kind_was(monkeypatch):
    trials, trial = [], causal.CachedModel._tried
    monkeypatch.setattr(causal, "TRIED", {})
    monkeypatch.setattr(causal.CachedModel, "_tried", lambda *a: trials.append(a) or trial(*a))
    model, equal, eager = tiny("llama"), tiny("llama"), tiny("llama", "eager")
    kinds = [model, equal, tiny("llama", dtype=torch.float32), tiny("qwen3"), eager]
    assert [LocalEngine(each) and len(trials) for each in kinds] == [1, 1, 2, 3, 4]
    handle = equal.register_forward_hook(lambda *_: None)
    assert [LocalEngine(equal) and len(trials) for _ in range(2)] == [5, 6]
    handle.remove()
    monkeypatch.setattr(equal, "forward", equal.forward)
    assert [LocalEngine(equal) and len(trials) for _ in range(2)] == [7, 8]
    plain = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *a, **more: plain(*a, **more))
    assert LocalEngine(model)
    assert len(trials) == 9


def test_a_cache_has_the_name_that_the_decoder_gives_it() -> None:
    model = tiny("llama")
    for forward, name in (
        (lambda input_ids, cache=None: None, "cache"),
        (lambda input_ids, past_key_values=None: None, "past_key_values"),
    ):
        model.get_decoder().forward = forward
        assert causal.cache_name(model) == name


def test_a_model_that_ignores_its_mask_is_refused(monkeypatch):
    model = tiny("llama", dtype=torch.float32)
    monkeypatch.setattr(causal, "TRIED", {})
    monkeypatch.setattr(Attention, "masks", lambda self, positions, used: None)
    with pytest.raises(UserError, match="differ from the plain forward pass"):
        LocalEngine(model)
