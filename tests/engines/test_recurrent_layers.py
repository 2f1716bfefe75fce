"""Models some of whose layers keep a state in place of keys and values, in the local engine."""

import pytest
import torch
from fakes.engine import sample
from fakes.models import RECURRENT, VOCAB, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_local_agreement import check_against_forward, joined, requests
from test_local_engine import engine, local, new_ids, prefilled, run, tokens
from transformers import AutoModelForCausalLM, GPTNeoConfig, Llama4TextConfig

from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.support.errors import UserError

# A state in place of keys and values, and beside them.
MODELS = [tiny(family, dtype=torch.float32) for family in ("qwen3_5", "falcon_h1")]
MODEL = MODELS[0]


@pytest.mark.parametrize("family", RECURRENT)
def test_logp_agrees_with_the_trainer(family):
    model = tiny(family, "eager" if "mamba" in family else "sdpa", torch.float32)
    e = LocalEngine(model, num_slots=4)  # fewer slots than rows: rows are replaced
    for temperature in (1.0, 0.6):
        for finished in sample(e, requests(9, temperature=temperature)):
            assert len(joined(finished, "ids")) == finished.request.max_tokens
            check_against_forward(model, finished, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype):
    model = tiny("qwen3_5", dtype=dtype)
    for finished in sample(LocalEngine(model, num_slots=2), requests(4)):
        check_against_forward(model, finished, 0.15 if dtype == torch.bfloat16 else 1e-5)


@settings(max_examples=10)
@given(
    st.sampled_from(MODELS), st.sampled_from([1, 2, 5, 12]), st.sampled_from([None, 40, 90]),
    st.integers(0, 9), st.randoms(),
)  # fmt: skip
def test_slots_order_sharing_and_room_change_nothing(model, num_slots, bound, salt, random):
    prompts = [(3, 4, 5), (3, 4, 5, 6), (9,), tuple(range(11))]
    wanted = [
        Request(prompts[i % 4], 3 + i % 9, seed=salt * 100 + i, stop_ids=(1, 2)) for i in range(10)
    ]
    expected = {request: run(request, model=model, num_slots=1) for request in wanted}
    random.shuffle(wanted)
    e = local(num_slots, model=model, max_cached_tokens=bound)
    for finished in sample(e, wanted):
        assert joined(finished, "ids") == expected[finished.request]


@settings(max_examples=8)
@given(
    st.sampled_from(MODELS), st.integers(1, 6), st.integers(3, 11),
    st.lists(st.integers(0, VOCAB - 1), max_size=2), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_branch_equals_the_request_alone(model, num_slots, at, more, keep, ended):
    e = engine(num_slots, model=model)
    others = [e.submit(Request((7, 8, 9), 12, seed=70 + i, keep=True)) for i in range(2)]
    parent = e.submit(Request((3, 4, 5), 9, seed=2, keep=keep))
    while parent in e.open and (ended or len(tokens(e, parent)) < at):
        e.step()
    branches = {
        e.submit(request, (parent, at)): request
        for seed in (98, 99)
        for request in [Request((*tokens(e, parent)[:at], *more), 6, seed=seed)]
    }
    heard = e.finish()
    for id, request in branches.items():
        assert new_ids(heard[id]) == run(request, model=model)
    assert [list(e.answers[id].ids) for id in others] == [
        run(Request((7, 8, 9), 12, seed=70 + i), model=model) for i in range(2)
    ]


@pytest.mark.parametrize("model", MODELS)
def test_a_state_is_copied_only_where_a_row_goes_on_from_it(model, monkeypatch):
    e = engine(num_slots=8, model=model)
    widths = prefilled(e, monkeypatch)
    group = [e.submit(Request((3, 4, 5, 6), 9, seed=seed, keep=True)) for seed in range(3)]
    e.step()
    assert widths == [3]  # once for the group
    e.finish()
    whole = tokens(e, group[0])
    e.submit(Request((*whole, 1, 2), 2, seed=1), (group[0], len(whole)))
    e.step()
    assert widths == [3, 2]  # all but the last token of the row are in its state
    e.finish()
    e.submit(Request((*whole[:8], 1, 2), 2, seed=1), (group[1], 8))
    e.step()
    assert widths == [3, 2, 9]  # there is no state after eight tokens


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("filling", [False, True])
def test_an_interrupted_pass_leaves_no_token_in_a_state(model, filling, monkeypatch):
    e = engine(num_slots=2, model=model)
    parent = e.submit(Request((3, 4, 5), 9, seed=1, keep=True))
    for _ in range(12 if filling else 4):
        e.step()
    wanted = Request((*tokens(e, parent), 1, 2), 4, seed=3)

    def interrupted(*given, passes=e.model._run, **more):
        passes(*given, **more)
        raise KeyboardInterrupt

    more = e.submit(wanted, (parent, 12)) if filling else None
    with monkeypatch.context() as patch:
        patch.setattr(e.model, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            e.step()
    if filling:
        e.cancel(more)
        more = e.submit(wanted, (parent, 12))
    heard = e.finish()
    assert not filling or new_ids(heard[more]) == run(wanted, model=model)
    assert list(e.answers[parent].ids) == run(Request((3, 4, 5), 9, seed=1), model=model)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"can't draft tokens .*: the states of its recurrent"):
        local(2, model=MODEL, speculate=2)
    shared = {"vocab_size": VOCAB, "hidden_size": 16, "num_attention_heads": 4}
    config = Llama4TextConfig(
        **shared, num_key_value_heads=4, num_hidden_layers=1, num_local_experts=2
    )
    with pytest.raises(UserError, match=r"no cache for chunked_attention; .*engine.kind=vllm"):
        local(2, model=AutoModelForCausalLM.from_config(config))
    config = GPTNeoConfig(
        vocab_size=VOCAB, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=24,
        attention_types=[[["global", "local"], 1]],
    )  # fmt: skip
    with pytest.raises(UserError, match="no cache for local attention"):
        local(2, model=AutoModelForCausalLM.from_config(config))
