"""Log-probabilities over the tokens that the rules of a draw kept, and their gradients."""

import math
from dataclasses import replace

import pytest
import torch
from test_head import NAMES, SETTINGS, close, make, plain_gradients, push

from strop.head.head import Head, columns
from strop.head.kept import Kept

# of five tokens: nothing known, one that is left alone, three, all, two
SETS = ([], [3], [0, 2, 5], [], [1, 4])
CUT = [bool(each) for each in SETS]


def kept_of(sets) -> Kept:
    """The sets, as they lie in a batch that has others before them."""
    sizes = torch.tensor([len(each) for each in sets])
    ids = torch.tensor([9, 9, *(id for each in sets for id in each)], dtype=torch.int32)
    return Kept(ids, 2 + sizes.cumsum(0) - sizes, sizes)


def plain(head, hidden_TD, id_T, sets=SETS):
    """logp_T by ordinary autograd."""
    logits_TV = hidden_TD @ head.weight.T * head.scale
    logits_TV = logits_TV if head.bias is None else logits_TV + head.bias * head.scale
    if head.softcap is not None:
        logits_TV = head.softcap * (logits_TV / head.softcap).tanh()
    rows = []
    for z_V, id, kept in zip(logits_TV / head.temperature, id_T.tolist(), sets, strict=True):
        over = z_V[kept] if kept else z_V
        rows.append(z_V[id] - over.logsumexp(0))
    return torch.stack(rows)


def test_worked_example():
    # z = log(.5, .3, .15, .05): the second of the first two has .3 / .8, of all .3
    weight = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()[:, None]
    hidden, ids = torch.ones(3, 1, dtype=torch.float64), torch.tensor([1, 1, 3])
    found = columns(Head(weight), hidden, ids, ("logp_T", "entropy_T"),
                    kept=kept_of(([0, 1], [], [3])))  # fmt: skip
    wanted = [math.log(0.375), math.log(0.3), 0.0]
    assert found["logp_T"].tolist() == pytest.approx(wanted, abs=1e-12)
    assert found["entropy_T"].tolist() == pytest.approx([1.142120] * 3, abs=1e-6)  # of all tokens


@pytest.mark.parametrize("name", ["plain", "everything"])
@pytest.mark.parametrize("chunk", [1, 2, None])
def test_values_and_gradients_are_those_of_autograd(name, chunk):
    head, hidden_TD, _, _ = make(num_tokens=5, vocabulary=7, width=4, **SETTINGS.get(name, {}))
    head = replace(head, chunk_tokens=chunk)
    id_T = torch.tensor([6, 3, 2, 0, 4])
    weight_T = torch.tensor([0.3, -1.0, 0.7, 2.0, -0.4], dtype=torch.float64)
    wanted_T = plain(head, hidden_TD, id_T)
    wanted = plain_gradients(weight_T @ wanted_T, head, hidden_TD)
    pushed = push(head, hidden_TD, id_T, lambda rows, _: {"logp_T": weight_T[rows]}, NAMES,
                  kept=kept_of(SETS))  # fmt: skip
    close(pushed.columns["logp_T"], wanted_T)
    close(pushed.grad_hidden_TD, wanted[0])
    close(pushed.grad_weight_VD, wanted[1])


def test_all_other_columns_and_their_gradients_stay_those_of_the_vocabulary():
    head, hidden_TD, _, adjoints = make(num_tokens=5, vocabulary=7, width=4)
    id_T, adjoints = torch.tensor([6, 3, 2, 0, 4]), {**adjoints}
    names = tuple(name for name in NAMES if name != "logp_T")
    given = {name: adjoints[name][:5] for name in ("entropy_T", "mean_logp_T")}

    def pushed(kept):
        return push(head, hidden_TD, id_T, lambda rows, _: {n: a[rows] for n, a in given.items()},
                    ("logp_T", *names), kept=kept)  # fmt: skip

    cut, whole = pushed(kept_of(SETS)), pushed(None)
    for name in names:
        assert torch.equal(cut.columns[name], whole.columns[name])
    assert torch.equal(cut.grad_hidden_TD, whole.grad_hidden_TD)
    same = (cut.columns["logp_T"] == whole.columns["logp_T"]).tolist()
    assert same == [not each for each in CUT]


def test_sets_that_cut_nothing_change_no_bit():
    head, hidden_TD, id_T, adjoints = make(num_tokens=6)

    def push_with(kept):
        def own(rows, _):
            return {"logp_T": adjoints["logp_T"][rows]}

        return push(head, hidden_TD, id_T, own, kept=kept)

    none = kept_of([[]] * 6)
    for mine, theirs in zip(push_with(none)[2:], push_with(None)[2:], strict=True):
        assert (mine is theirs is None) or torch.equal(mine, theirs)


def test_a_policy_that_has_moved_far_from_its_sets():
    """The likeliest of all lies 200 nats above the set: exp of it alone would be 0."""
    weight = torch.tensor([[200.0], [0.0], [-1.0]])
    found = columns(Head(weight), torch.ones(1, 1), torch.tensor([2]), kept=kept_of([[1, 2]]))
    assert float(found["logp_T"]) == pytest.approx(-math.log(1 + math.e), abs=1e-5)
