"""The behaviour of every advantage, selection and loss part on ragged batches."""

import functools
import itertools
from dataclasses import fields, replace

import torch
from builders import run as called
from differences import slopes_by_differences
from every import every
from ragged import NUM_STEPS, copies, ragged_batch, with_noise_outside, with_unscored
from torch import Tensor

from strop.batch.batch import Batch, level_of
from strop.catalogue import catalogue
from strop.method import part as parts
from strop.method.part import Selected, Term, Use
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.training.learner import kernel
from strop.training.learner.kernel import View

FOLDERS = ("advantage", "selection", "loss")
ENTRIES = [e for e in catalogue.parts() if e.folder.split("/")[0] in FOLDERS]
SEEDS = (0, 1)  # of every part
TERM_FOLDERS = ("loss/ratio", "loss/bound", "loss/penalty", "loss/value")


def part_of(entry):
    """The part with its defaults, schedules resolved."""
    return parts.at_step(entry.load()(), 3, NUM_STEPS)


def draws(part) -> bool:
    return "rng" in {p.name for p in parts.parameters(part)}


def batch_for(seed: int, dtype=torch.float64, **options) -> Batch:
    """A ragged batch with whole next-token distributions and distinct rewards, of its own."""
    made = made_once(seed, dtype, **options)
    return Batch({name: column.clone() for name, column in made.columns.items()})


@functools.cache
def made_once(seed: int, dtype: torch.dtype, **options) -> Batch:
    batch = ragged_batch(seed, dtype=dtype, **options)
    rng = torch.Generator().manual_seed(seed)
    shape = (batch.size("T"), 5)
    for name in ("logq_TV", "logq_ref_TV", "logq_old_TV"):
        logits_TV = torch.randn(shape, generator=rng, dtype=dtype)
        batch = batch.set(**{name: torch.log_softmax(logits_TV, dim=-1)})
    reward_B = torch.randn(batch.size("B"), generator=rng, dtype=dtype)
    return batch.set(reward_B=reward_B, outcome_B=reward_B, advantage_B=reward_B)


def run(part, batch: Batch, seed: int = 0, rows: slice | None = None) -> dict[str, Tensor]:
    """The part's results by column; loss parts see the batch as the kernel shows it to them."""
    use = Use(part)
    if "rewards_from_0_to_1" in parts.facts(use):
        batch = batch.set(reward_B=torch.sigmoid(batch["reward_B"]))
    is_loss = parts.kind_of(part).startswith("loss")
    shown = View(batch, rows or slice(None)) if is_loss else batch
    value = called(part, shown, rng=torch.Generator().manual_seed(seed)).value
    if isinstance(value, Selected):
        return {"gradient_T": value.gradient_T, "denominator_T": value.denominator_T}
    names = parts.writes(use)
    values = value if isinstance(value, tuple) else (value,)
    return dict(zip(names, values, strict=True))


def told(part, batch: Batch, seed: int = 0) -> dict[str, Tensor]:
    """What the part tells a log: numbers, or one per token with a gradient."""
    use = Use(part)
    if "rewards_from_0_to_1" in parts.facts(use):
        batch = batch.set(reward_B=torch.sigmoid(batch["reward_B"]))
    shown = View(batch) if parts.kind_of(part).startswith("loss") else batch
    found = called(part, shown, rng=torch.Generator().manual_seed(seed)).metrics
    numbers = {name: torch.as_tensor(value).double() for name, value in found.items()}
    return {n: x if x.dim() == 0 else x[batch["gradient_T"]] for n, x in numbers.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[k].double(), other[k].double(), rtol=1e-9, atol=1e-12) for k in one
    )


every_part = every("entry", ENTRIES)


@every_part
def test_inputs_stay_as_they_are(entry):
    for seed in SEEDS:
        check_inputs_stay(entry, seed)


def check_inputs_stay(entry, seed):
    batch = batch_for(seed)
    before = {name: column.clone() for name, column in batch.columns.items()}
    run(part_of(entry), batch)
    for name, column in before.items():
        assert batch[name].equal(column), name


@every_part
def test_permuting_rollouts_permutes_the_result(entry):
    for seed in SEEDS:
        check_permuted(entry, seed)


def check_permuted(entry, seed):
    part, batch = part_of(entry), batch_for(seed)
    if draws(part):  # a draw follows the row order; the seed test covers it
        batch = batch.set(dropped_T=batch["denominator_T"])
    order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(seed))
    found = run(part, batch)
    moved = batch.set(**{f"found:{name}": value for name, value in found.items()}).take(order)
    expected = {name: moved[f"found:{name}"] for name in found}
    assert same(run(part, batch.take(order)), expected)


@functools.cache
def batch_of_copies(seed: int, times: int) -> Batch:
    """Every rollout so many times; of odd seeds the rewards are 0 and 1."""
    batch = copies(batch_for(seed), times)
    batch = batch.set(rollout_uid_B=torch.arange(batch.size("B")))
    if seed % 2:
        right_B = (batch["reward_B"] > 0).double()
        batch = batch.set(reward_B=right_B, outcome_B=right_B, advantage_B=right_B)
    return batch


@every_part
def test_equal_rollouts_are_treated_alike_or_the_part_states_that_order_breaks_ties(entry):
    part, same = part_of(entry), []
    if draws(part):  # a draw follows the row order
        return
    for seed, times in itertools.product(range(6), (2, 3)):
        batch = batch_of_copies(seed, times)
        for name, value in run(part, batch).items():
            blocks = value.double().chunk(times) if level_of(name) in ("B", "K", "T") else ()
            same += [torch.allclose(one, other) for one, other in itertools.pairwise(blocks)]
    states = "order_breaks_ties" in parts.facts(Use(part))
    assert all(same) != states, f"it states order_breaks_ties: {states}"


@every_part
def test_values_outside_the_mask_never_matter(entry):
    for seed in SEEDS:
        check_values_outside(entry, seed)


def check_values_outside(entry, seed):
    part, batch = part_of(entry), batch_for(seed)
    noisy = with_noise_outside(batch)
    found = run(part, noisy)
    quiet = with_noise_outside(batch, 0.0)
    assert same(found, run(part, quiet))
    assert same(told(part, noisy), told(part, quiet)), "what it logs depends on them"
    for value in found.values():
        assert torch.isfinite(value.double()).all()


@every_part
def test_unscored_rollouts_take_part_in_nothing(entry):
    part, batch = part_of(entry), batch_for(7, group_sizes=(4, 3, 2))
    batch = batch.set(pending_B=torch.zeros(9, dtype=torch.bool))
    batch, other = with_unscored(batch, 0, 5)
    reads = {read.column for read in parts.reads(Use(part))}
    changed = run(part, other)
    for name, value in run(part, batch).items():
        rollout = {"B": "index_B", "K": "rollout_K"}.get(level_of(name), "rollout_T")
        row_B = batch["scored_B"][batch[rollout]]
        assert value[row_B].equal(changed[name][row_B])
        is_number = value.is_floating_point()  # and no key
        if is_number and "scored_B" in reads and not name.startswith(("gradient", "denominator")):
            assert (value[~row_B] == 0).all()


@every_part
def test_dtype_is_kept(entry):
    for dtype in (torch.float64, torch.float32):
        check_dtype(entry, dtype)


def check_dtype(entry, dtype):
    for name, value in run(part_of(entry), batch_for(3, dtype)).items():
        if name.startswith(("gradient", "denominator")):
            assert value.dtype == torch.bool
        elif not value.is_floating_point():
            assert value.dtype in (torch.int64, torch.bool)
        elif name == "share_T":  # sums over millions of tokens
            assert value.dtype == torch.float64
        else:
            assert value.dtype == dtype


@every_part
def test_empty_single_and_uniform_groups_are_finite(entry):
    part = part_of(entry)
    whole = batch_for(4)
    uniform = whole.set(
        **{k: torch.full_like(whole[k], 0.3) for k in ("reward_B", "advantage_B", "outcome_B")}
    )
    unscored = whole.set(scored_B=torch.zeros_like(whole["scored_B"]))
    nothing = whole.set(
        **{
            name: torch.zeros_like(whole[name])
            for name in ("mask_T", "gradient_T", "denominator_T")
        }
    )
    single = batch_for(5, group_sizes=(1,))
    empty = whole.keep(whole["index_B"] < 0)
    for batch in (uniform, single, empty, unscored, nothing):
        for name, value in run(part, batch).items():
            assert value.shape[0] == batch.size(level_of(name))
            assert torch.isfinite(value.double()).all(), name
        for name, value in told(part, batch).items():
            assert torch.isfinite(value).all(), name


HAVE_EPS = [e for e in ENTRIES if {"eps", "deviation"} & {f.name for f in fields(e.load())}]
SCALED = {"scale": "unbiased", "whiten": True, "normalize_std": True}  # options that divide


@every("entry", HAVE_EPS)
def test_equal_values_are_finite_without_eps(entry):
    part = part_of(entry)
    own = {field.name for field in fields(part)}
    zero = {"eps": 0.0} if "eps" in own else {"deviation": (0.0, True)}
    part = replace(part, **zero, **{name: SCALED[name] for name in own & SCALED.keys()})
    single = batch_for(5, group_sizes=(1,))
    for batch in (batch_for(4), single):
        for number in (0.0, 0.3):
            equal = {k: torch.full_like(x, number) for k, x in batch.columns.items()
                     if x.is_floating_point() and x.dim()}  # fmt: skip
            for name, value in run(part, batch.set(**equal)).items():
                assert torch.isfinite(value.double()).all(), name


@every_part
def test_same_seed_same_result(entry):
    part, batch = part_of(entry), batch_for(6)
    assert same(run(part, batch, seed=3), run(part, batch, seed=3))


TERMS = [e for e in ENTRIES if e.folder in TERM_FOLDERS]


@every("entry", TERMS)
def test_scope_is_what_it_says(entry):
    """Token parts may run on any slice of tokens, rollout parts on any rollouts."""
    part, batch = part_of(entry), batch_for(8)
    scope = getattr(part, "scope", "token")
    assert scope in kernel.SCOPES
    (found,) = run(part, batch).values()
    if scope == "token":
        for rows in (slice(0, 5), slice(5, 6), slice(6, None)):
            assert torch.allclose(*run(part, batch, rows=rows).values(), found[rows])
    if scope in ("token", "rollout"):
        for row in range(batch.size("B")):
            own_T = batch["rollout_T"] == row
            one = batch.take(torch.tensor([row]))
            assert torch.allclose(*run(part, one).values(), found[own_T])


@every("entry", TERMS)
def test_gradient_is_that_of_finite_differences(entry):
    """Of the loss through the kernel, in every current column, with detached values held."""
    part = part_of(entry)
    if entry.folder == "loss/ratio":
        ratio, objective = Use(part), Use(catalogue.load("part", "clip_both_sides")())
    else:
        reads = {read.column for read in parts.reads(Use(part))}
        ratio = Use(catalogue.load("part", "ratio_per_token")()) if "log_ratio_T" in reads else None
        objective = Use(part)
    term = Term("term", objective, Use(AverageOverTokens()), ratio=ratio, coef=0.7)
    batch = batch_for(9)
    kernel_check(term, batch.set(gradient_T=batch["mask_T"], denominator_T=batch["mask_T"]))


def kernel_check(term: Term, batch: Batch) -> None:
    prepared = kernel.prepare([term], batch)
    names = [n for n in ("logp_T", "entropy_T", "mean_logp_T", "value_T", "logq_TV",
                         "router_balance_T") if n in batch]  # fmt: skip
    reads = {read.column for _, use in term.uses() for read in parts.reads(use)}
    reads -= getattr(term.objective.part, "detached", frozenset())
    assert reads & set(names), "no column of this part is differentiated"
    for name in sorted(reads & set(names)):

        def loss(column: Tensor, name: str = name) -> Tensor:
            view = View(prepared, current={name: column})
            rng = torch.Generator().manual_seed(0)
            return kernel.term_loss(term, view, kernel.Tally(), rng=rng)

        analytic, found, numeric = slopes_by_differences(loss, batch[name], num=3)
        assert torch.allclose(found, numeric, rtol=1e-6, atol=1e-8), name
        inside_T = batch["mask_T"]
        assert (analytic[~inside_T] == 0).all()
        assert (analytic != 0).any()


DETACHED = [e for e in TERMS if hasattr(e.load(), "detached")]


@every("entry", DETACHED)
def test_columns_read_without_a_gradient_get_none(entry):
    part, batch = part_of(entry), batch_for(9)
    batch = batch.set(gradient_T=batch["mask_T"], denominator_T=batch["mask_T"])
    ratio = Use(catalogue.load("part", "ratio_per_token")())
    term = Term("term", Use(part), Use(AverageOverTokens()), ratio=ratio)
    columns = {name: batch[name] for name in ("logp_T", *sorted(part.detached))}
    view = View(kernel.prepare([term], batch))
    _, found = kernel.adjoints([term], view, columns, kernel.Tally())
    assert (found["logp_T"] != 0).any()
    assert not any(found[name].any() for name in part.detached)


SILENT = [e for e in TERMS if "silent_at_zero_advantage" in parts.facts(Use(e.load()()))]


@every("entry", SILENT)
def test_silent_parts_have_no_gradient_where_the_advantage_is_zero(entry):
    batch = batch_for(10)
    batch = batch.set(gradient_T=batch["mask_T"], denominator_T=batch["mask_T"])
    silent_T = torch.arange(batch.size("T")) % 2 == 0
    batch = batch.set(advantage_T=torch.where(silent_T, 0, batch["advantage_T"]))
    ratio = Use(catalogue.load("part", "ratio_per_token")())
    term = Term("term", Use(part_of(entry)), Use(AverageOverTokens()), ratio=ratio)
    view = View(kernel.prepare([term], batch))
    _, found = kernel.adjoints([term], view, {"logp_T": batch["logp_T"]}, kernel.Tally())
    assert (found["logp_T"][silent_T] == 0).all()
    assert (found["logp_T"][~silent_T] != 0).any()


def outputs(part) -> dict[str, Tensor]:
    """The part's results on several batches, one after another."""
    if parts.name_of(part) == "drop_mismatched_rollouts":  # by its defaults it drops them all
        part = replace(part, lowest=0.9, highest=1.1)
    found: dict[str, list[Tensor]] = {}
    for seed in range(4):
        batch = batch_for(seed)
        hint_T = batch["mask_T"] & (torch.arange(batch.size("T")) % 4 == 0)
        small_B = torch.where(batch["index_B"] % 3 == 0, 1e-3, 1.0).double()
        batch = batch.set(
            advantage_B=batch["advantage_B"] * small_B,
            advantage_T=batch["advantage_T"] * torch.where(hint_T, 9, 1),
            outcome_B=(batch["index_B"] * 3 % 4).double() / 2,
            max_length=torch.tensor(8 + 3 * seed),
            scored_B=torch.ones_like(batch["scored_B"]),
            origin_T=torch.where(hint_T, 3, batch["origin_T"]),
            parent_B=_of_the_row_before(batch, torch.arange(-1, batch.size("B") - 1)),
            fork_at_B=_of_the_row_before(batch, torch.ones_like(batch["group_B"])),
        )
        for name, value in run(part, batch).items():
            # Only what the kernel would use of it.
            kept = batch["gradient_T"] if level_of(name) == "T" else slice(None)
            found.setdefault(name, []).append(value[kept].double())
    return {name: torch.cat(values) for name, values in found.items()}


def _of_the_row_before(batch, value_B: Tensor) -> Tensor:
    """The value where a rollout has one of its group before it, else -1."""
    group_B = batch["group_B"]
    before_B = torch.cat([group_B.new_full((1,), -1), group_B[:-1]])
    return torch.where(before_B == group_B, value_B, -1)


def proportional(one: Tensor, other: Tensor) -> bool:
    if not one.any() or not other.any():
        return torch.equal(one, other)
    cosine = (one @ other) / (one.norm() * other.norm())
    return abs(float(cosine)) > 1 - 1e-9


def test_no_two_parts_of_a_seam_are_the_same():
    by_seam: dict[str, list] = {}
    for entry in ENTRIES:
        by_seam.setdefault(entry.folder, []).append(entry)
    for entries in by_seam.values():
        results = {entry.name: outputs(part_of(entry)) for entry in entries}
        for one, other in itertools.combinations(results, 2):
            shared = results[one].keys() & results[other].keys()
            twins = shared and all(proportional(results[one][k], results[other][k]) for k in shared)
            assert not twins, f"{one} and {other} do the same"


def test_the_twin_test_finds_a_planted_twin():
    part = catalogue.load("part", "divide_by_group_std")()
    twin = replace(part, eps=part.eps * (1 + 1e-9))
    assert all(proportional(v, outputs(twin)[k]) for k, v in outputs(part).items())
