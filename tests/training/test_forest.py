"""The layout of contexts as a forest, against sets of prefixes in Python."""

from types import SimpleNamespace

import pytest
import torch
from fakes.models import FAMILIES, tiny

from strop.batch.batch import from_padded
from strop.training.learner import prefix_sharing
from strop.training.learner.prefix_sharing import (
    ROWS,
    attend,
    attending_rows,
    compared,
    lay_out,
    layout,
    plant,
    rows_of,
    split,
    worthwhile,
)

# "ab" begins four contexts, two go on with "c"; one is part of another, one stands twice.
WORDS = ("abcd", "x", "abce", "ab", "abf", "abcd", "yab")


def rows(words):
    id_T = torch.tensor([ord(letter) for word in words for letter in word])
    context_T = torch.repeat_interleave(
        torch.arange(len(words)), torch.tensor([len(word) for word in words])
    )
    return rows_of(id_T, context_T, len(words))


def forest_of(words):
    return plant(rows(words))


def random_words(seed, num=40, longest=12):
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, longest + 1, (num,), generator=rng).tolist()
    return ["".join("ab"[int(i)] for i in torch.randint(2, (n,), generator=rng)) for n in sizes]


def prefixes(words):
    return {word[: end + 1] for word in words for end in range(len(word))}


@pytest.mark.parametrize("words", [WORDS, ("a",), *map(random_words, range(5))])
def test_every_prefix_is_one_node_and_sees_its_own_prefixes(words):
    forest = forest_of(words)
    assert rows(words).num_nodes == forest.size
    assert rows(words).depth_of(torch.arange(forest.size)).equal(forest.depth_N)
    text_of = {}
    for word, nodes in zip(words, forest.node_CL.tolist(), strict=True):
        for end, node in enumerate(nodes[: len(word)]):
            assert text_of.setdefault(node, word[: end + 1]) == word[: end + 1]
            assert words[forest.context_N[node]].startswith(word[: end + 1])
    assert sorted(text_of) == list(range(forest.size))
    assert len(set(text_of.values())) == forest.size == len(prefixes(words))
    for node, text in text_of.items():
        assert chr(forest.id_N[node]) == text[-1]
        assert forest.depth_N[node] == len(text) - 1
        seen = [key for key in range(node + 1) if node < forest.end_N[key]]
        assert [text_of[key] for key in seen] == [text[: end + 1] for end in range(len(text))]


def test_worked_example():
    # a ab abc abcd abce abf | x | y ya yab: ten prefixes of 4 + 1 + 4 + 2 + 3 + 4 + 3 tokens
    forest = forest_of(WORDS)
    assert forest.size == 10
    assert "".join(map(chr, forest.id_N)) == "abcdefxyab"
    assert forest.depth_N.tolist() == [0, 1, 2, 3, 3, 2, 0, 0, 1, 2]
    assert forest.end_N.tolist() == [6, 6, 5, 4, 5, 6, 7, 10, 10, 10]
    assert forest.node_CL[[0, 2, 4]].tolist()[0] == [0, 1, 2, 3]
    assert forest.node_CL[2].tolist() == [0, 1, 2, 4]
    assert forest.node_CL[4, :3].tolist() == [0, 1, 5]


@pytest.mark.parametrize("block", [1, 2, 3, 32])
@pytest.mark.parametrize("window", [None, 3])
def test_blocks_see_what_the_nodes_see(block, window, monkeypatch):
    monkeypatch.setattr("strop.training.learner.prefix_sharing.best_block", lambda depth_N: block)
    forest = forest_of(random_words(1))
    laid_out = lay_out(forest)
    masks = laid_out.masks(window, torch.float32)
    found = {}
    for part, mask in zip(laid_out.parts, masks, strict=True):
        assert part.key_MK.shape[1] < block + int(forest.depth_N.max()) + 8
        for number, keys, rows in zip(part.number_M, part.key_MK, mask[:, 0] == 0, strict=True):
            for query in range(block):
                found[int(number) * block + query] = keys[rows[query]].tolist()
    for query in range(forest.size):
        depth = forest.depth_N[query]
        expected = [
            key
            for key in range(query + 1)
            if query < forest.end_N[key]
            and (window is None or depth - forest.depth_N[key] < window)
        ]
        assert found[query] == expected
    assert all(found.pop(query) for query in list(found))  # no softmax over nothing


@pytest.mark.parametrize("groups", [1, 2])
def test_a_node_attends_to_its_own_prefixes(groups, monkeypatch):
    monkeypatch.setattr("strop.training.learner.prefix_sharing.best_block", lambda depth_N: 2)
    forest = forest_of(random_words(1))
    laid_out = lay_out(forest)
    assert len(laid_out.parts) > 1
    rng = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, forest.size, 3, generator=rng, dtype=torch.float64)
        for heads in (4, 4 // groups, 4 // groups)
    )
    found, _ = attend(
        torch.nn.Module(), query, key, value, None, strop_layout=laid_out, scaling=0.5
    )
    node_N = torch.arange(forest.size)
    hidden_NN = (node_N > node_N[:, None]) | (node_N[:, None] >= forest.end_N)
    key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    scores = (0.5 * query @ key.transpose(2, 3)).masked_fill(hidden_NN, -torch.inf)
    torch.testing.assert_close(found, (scores.softmax(-1) @ value).transpose(1, 2))


def test_blocks_of_like_depth_go_together_while_they_copy_little(monkeypatch):
    # Blocks of 2 over 4 nodes, so at most 8 copies at once. Depths 0 and 1 copy 2 * 3 nodes; with
    # the next two, which are of a new kind, 2 * 5 would be too many, as 2 * 11 are of the last.
    parts = prefix_sharing._parts(torch.tensor([0, 9, 2, 8, 3, 1]), 2, 4)
    assert [part.tolist() for part in parts] == [[0, 5], [2], [4], [1], [3]]


def test_a_models_trial_fits_into_its_positions():
    for most, length in ((8, 8), (64, 16), (None, 16)):
        ids_CL = prefix_sharing._trial(SimpleNamespace(max_position_embeddings=most, vocab_size=9))
        assert ids_CL.shape == (5, length)
        assert 0 <= int(ids_CL.min()) <= int(ids_CL.max()) < 9


def batch_of(words):
    ids_BL = torch.zeros(len(words), max(map(len, words)), dtype=torch.long)
    mask_BL = torch.zeros_like(ids_BL, dtype=torch.bool)
    for row, word in enumerate(words):
        ids_BL[row, : len(word)] = torch.tensor(list(map(ord, word)))
        mask_BL[row, len(word) - 1] = True
    return from_padded({"id_T": ids_BL}, mask_BL)


@pytest.mark.parametrize("words", [WORDS, *map(random_words, range(3))])
@pytest.mark.parametrize("budget", [1, 4, 9, 50, 1000])
def test_a_micro_batch_counts_each_prefix_once(words, budget):
    batch = batch_of(words)
    micros = [micro.tolist() for micro in split(batch, worthwhile(batch, "on", 8), budget)]
    assert sorted(row for micro in micros for row in micro) == list(range(len(words)))
    for micro, following in zip(micros, [*micros[1:], None], strict=True):
        size = len(prefixes([words[row] for row in micro]))
        assert size <= budget or len(micro) == 1
        if following is not None:  # nor is it cut before it is full
            assert len(prefixes([words[row] for row in (*micro, following[0])])) > budget
        shared = layout(batch.take(torch.tensor(micro)), "on", 8, budget)
        assert shared.forest.size == size


def test_alike_contexts_go_together():
    # 5 prompts of 6 tokens with 3 answers of 1: nine prefixes a prompt, two prompts a pass
    words = [f"{prompt}.....{answer}" for answer in "xyz" for prompt in "abcde"]
    micros = split(batch_of(words), worthwhile(batch_of(words), "on", 8), 18)
    assert [sorted({words[row][0] for row in micro}) for micro in micros] == [
        ["a", "b"], ["c", "d"], ["e"]
    ]  # fmt: skip


def test_auto_shares_where_a_fifth_of_the_work_is_saved():
    alike, apart = batch_of(["abcx", "abcy"]), batch_of(["abcx", "bcdy", "aefz"])
    # 5 of 8 tokens, 11 of 12; a block compares 32 nodes with 32, plain attention 4 * 4 / 2 a word
    assert compared(rows(["abcx", "abcy"])) == 32 * 32
    wide, narrow = 1000, 57
    assert 5 * 6 * wide + 1024 < 0.8 * (8 * 6 * wide + 16)
    assert worthwhile(alike, "auto", wide).num_nodes == 5
    assert 5 * 6 * narrow + 1024 > 0.8 * (8 * 6 * narrow + 16)
    assert worthwhile(alike, "auto", narrow) is None
    assert worthwhile(apart, "auto", wide) is None
    assert worthwhile(apart, "on", wide).num_nodes == 11
    assert worthwhile(alike, "off", wide) is None
    # padding counts: 18 tokens with nothing in common take 40 places in one pass, 12 + 10 in two
    uneven = batch_of(["abcdefghij", "k", "lmno", "pqr"])
    cut = [torch.tensor([1, 3, 2]), torch.tensor([0])]
    assert worthwhile(uneven, "auto", wide).num_nodes == 18
    assert worthwhile(uneven, "auto", wide, cut) is None
    narrow = 8  # where sharing saves nothing: a pass of 4 contexts takes 4 * 10 places
    assert layout(uneven, "auto", narrow, 40) is None
    assert layout(uneven, "auto", narrow, 39).forest.size == 18
    assert layout(apart, "auto", wide, 12) is None
    shared = layout(apart, "auto", wide, 11)  # for it does not fit otherwise
    assert shared.forest.size == 11


def test_a_pass_that_costs_tokens_of_its_own_is_weighed_too():
    # one pass: 5 + p of 8 + p places are at most four fifths up to p = 6; two passes: of 8 + 2 p
    alike, wide = batch_of(["abcx", "abcy"]), 1000
    cut = [torch.tensor([0]), torch.tensor([1])]
    assert worthwhile(alike, "auto", wide, pass_tokens=6).num_nodes == 5
    assert worthwhile(alike, "auto", wide, pass_tokens=7) is None
    assert worthwhile(alike, "auto", wide, cut, pass_tokens=7).num_nodes == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_on_a_gpu_attend_as_transformers_has_it_without_its_look_at_positions(
    family, monkeypatch
):
    model, ids = tiny(family), torch.arange(36).view(3, 12) % 24
    plain = model(ids, use_cache=False).logits
    with attending_rows(model, "auto"):
        assert model.config._attn_implementation == "sdpa"
    monkeypatch.setattr(prefix_sharing, "_waits", lambda model: True)
    looks = []
    monkeypatch.setattr(
        "transformers.masking_utils.find_packed_sequence_indices", lambda _: looks.append(1)
    )
    with attending_rows(model, "auto"):
        taken = model.config._attn_implementation == ROWS
        assert torch.equal(model(ids, use_cache=False).logits, plain)
    assert taken == (family in ("qwen3", "llama", "gpt2"))
    assert taken != bool(looks)
    with attending_rows(model, "off"):
        assert model.config._attn_implementation == "sdpa"
