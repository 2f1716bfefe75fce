"""Similarity of tool calls, and the matching of a rollout's calls with reference calls."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strop.method.services import Call

MOST_EXACT = 10  # reference calls up to which the best assignment is searched
ROUNDS = 1000  # of Sinkhorn's scaling


def similarity(call: Call, reference: Call) -> float:
    """From 0 (another tool) to 1 (the same call).

        S = (1 + J + equal) / (2 + n)   if the names are equal up to case, else 0

    J: names of arguments in both / in either; n: arguments of the reference, equal: those whose
    value is the same in the call. Both have a `name` and `arguments`.
    """
    if not call.name or call.name.lower() != reference.name.lower():
        return 0.0
    ours, theirs = call.arguments, reference.arguments
    either = len(ours.keys() | theirs.keys())
    jaccard = len(ours.keys() & theirs.keys()) / either if either else 1.0
    equal: int = sum(name in ours and ours[name] == value for name, value in theirs.items())
    return (1 + jaccard + equal) / (2 + len(theirs))


def assign_best(scores: Sequence[Sequence[float]], unmatched: float) -> list[float]:
    """Each call's score in the one-to-one assignment with the largest sum; `unmatched` without one.

    scores: [calls][references]. Calls are taken in turn; for each set of references in use the best
    sum so far is kept, so the time grows with 2^references.
    """
    best: dict[int, tuple[float, list[float]]] = {0: (0.0, [])}
    for row in scores:
        found = {used: (total, [*got, unmatched]) for used, (total, got) in best.items()}
        for used, (total, got) in best.items():
            for place, score in enumerate(row):
                after = used | 1 << place
                if score <= 0 or after == used:
                    continue
                if after not in found or total + score > found[after][0]:
                    found[after] = (total + score, [*got, score])
        best = found
    return max(best.values(), key=lambda each: each[0])[1]


def assign_greedily(scores: Sequence[Sequence[float]], unmatched: float) -> list[float]:
    """Each call's score when the most similar free pair is matched repeatedly."""
    pairs = [(score, p, g) for p, row in enumerate(scores) for g, score in enumerate(row)]
    got = [unmatched] * len(scores)
    calls, references = set[int](), set[int]()
    for score, p, g in sorted(pairs, key=lambda pair: -pair[0]):
        if score > 0 and p not in calls and g not in references:
            got[p] = score
            calls.add(p)
            references.add(g)
    return got


def transport(scores: Sequence[Sequence[float]], regularisation: float) -> list[float]:
    """Each call's share of an entropic optimal transport between calls and references.

        score_p = sum_g T[p, g] S[p, g],  T = diag(u) exp(S / regularisation) diag(v)

    with rows that sum to 1 / calls and columns that sum to 1 / references.
    """
    scores_PG = torch.tensor(scores, dtype=torch.float64)
    num_calls, num_references = scores_PG.shape
    logits_PG = scores_PG / regularisation
    rows_P = torch.zeros(num_calls, 1, dtype=torch.float64)
    for _ in range(ROUNDS):
        before_P = rows_P
        columns_G = _log_scale(logits_PG + rows_P, 0, num_references)
        rows_P = _log_scale(logits_PG + columns_G, 1, num_calls)
        if float((rows_P - before_P).abs().max()) < 1e-9:
            break
    plan_PG = (logits_PG + rows_P + columns_G).exp()
    shares: list[float] = (plan_PG * scores_PG).sum(1).tolist()
    return shares


def _log_scale(logits: Tensor, dim: int, num: int) -> Tensor:
    """The summand after which the sums of exp over `dim` are 1 / num."""
    return -torch.logsumexp(logits, dim, keepdim=True) - torch.tensor(float(num)).log()
