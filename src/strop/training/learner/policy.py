"""The policy as a learner: columns without gradient, adjoints pushed back, optimiser steps.
AdamW for weights of any precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from strop.batch import segments
from strop.batch.batch import KEPT_AT, KEPT_IDS, NUM_KEPT, Batch, to_padded
from strop.head import head
from strop.head.chunk import Distribution, Head, Others
from strop.head.head import head_of, text_config, trunk_of
from strop.head.kept import Kept
from strop.support.adapted import routes_of, weights_of
from strop.support.devices import to_device
from strop.support.errors import RunStopped, UserError
from strop.support.experts import ATTRIBUTE, Experts, Watch, experts_of
from strop.training.learner import prefix_sharing, routing
from strop.training.learner.prefix_sharing import Layout, attending, attending_rows, pass_over
from strop.training.learner.reference_prompts import reprompted
from strop.training.learner.routing import BALANCE, NOW, Pass
from strop.training.parallel import shards
from strop.training.parallel.ranks import Ranks

T = TypeVar("T")
# The fixed cost of a pass, in tokens. On a CPU it is within 4% of the best of the values that
# benchmarks/padding.py tries; on a GPU it is an estimate, because launches there are waited for.
PASS_TOKENS = {"cpu": 128, "cuda": 1024}
MASKS = ("mask_T", "gradient_T", "denominator_T")
KL, OTHER = "kl_T", "logq_other_TV"  # names inside a pass of the head
LARGEST_RATE = 1e30  # beyond it a step leaves the range of float32
# (rows of the micro-batch's policy tokens, their columns) -> adjoints
AdjointsOf = Callable[[slice, dict[str, Tensor]], Mapping[str, Tensor]]
Around = tuple[Tensor, Tensor]  # hidden states before and after the policy tokens, in token order


@dataclass
class Policy:
    """A causal model that is trained, or a frozen one that is only scored.

    token_budget: tokens of one forward pass, padding included. share: when a prefix that several
    contexts share is computed once, if the model supports it (`prefix_sharing.why_not`). switch: a
    context for forward passes, such as one with disabled adapters. ranks: the processes that share
    the forward passes; all of them call each method with the same batch. shell: the plain model if
    this one is sharded. adapters: the names of the trained adapters, if there are several; a turn
    is computed under the adapter that acts in it. replay: the column of experts that passes
    replay; empty: routers choose. Columns are of the logits divided by the rollouts' temperature.
    """

    model: Any
    token_budget: int = 16384
    share: prefix_sharing.When = "off"
    optimiser: torch.optim.Optimizer | None = None
    max_grad_norm: float = 1.0
    switch: Callable[[], AbstractContextManager[object]] = nullcontext
    ranks: Ranks = field(default_factory=Ranks)
    shell: shards.Shell | None = None
    adapters: tuple[str, ...] = ()
    replay: str = ""
    _under: str = ""  # the current adapter

    current: tuple[str, ...] = ("logp_T", "entropy_T", "mean_logp_T")
    # Whether a pass returns its columns only with its gradient, so that losses read them only
    # afterwards, as with several processes; `push` may then request adjoints any number of times.
    columns_after_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        experts_of(self.model)  # found here, in a pass, and kept by the model

    @property
    def experts(self) -> Experts | None:
        """The experts of the model, also of its copy in its place; None: it has none."""
        return getattr(self.model, ATTRIBUTE, None)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def width(self) -> int:
        """The width of the hidden states."""
        return int(text_config(self.model).hidden_size)

    def trained(self) -> dict[str, nn.Parameter]:
        """The weights that are trained, by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def masters(self) -> dict[str, Tensor]:
        """The tensors that the optimiser steps, by the names of the trained weights."""
        of = {id(weight): master for weight, master in getattr(self.optimiser, "pairs", ())}
        return {name: of.get(id(weight), weight) for name, weight in self.trained().items()}

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Continue from other weights, given by name in the precision that the optimiser steps."""
        for name, master in self.masters().items():
            shards.put(weights[name], master)
        for weight, master in getattr(self.optimiser, "pairs", ()):
            weight.copy_(master)

    def micro_batches(self, batch: Batch) -> list[Tensor]:
        """Rollout indices of the forward passes over `batch`, at least one a process."""
        own = PASS_TOKENS[self.device.type]
        plain, rows = batch.split(self.token_budget, own), None
        if self.share != "off":
            batch = routing.ids_by_experts(batch, self.replay) if self.replay else batch
            rows = prefix_sharing.worthwhile(batch, self.share, self.width, plain, own)
        if self.ranks.alone:
            budget = self.token_budget
        else:
            total = batch.size("T") if rows is None else rows.num_nodes
            budget = min(self.token_budget, max(1, math.ceil(total / self.ranks.count)))
        if rows is not None:
            return prefix_sharing.split(batch, rows, budget)
        return plain if budget == self.token_budget else batch.split(budget, own)

    def turns(self, batch: Batch) -> list[tuple[Tensor, bool]]:
        """The forward passes of this process, as rollout indices and whether they count.

        Processes run a sharded model together: a process that has finished its own passes runs a
        spare rollout that does not count until the others have finished.
        """
        micros = self.micro_batches(batch)
        costs = [int(batch["size_B"][index_B].sum()) for index_B in micros]
        spare = micros[costs.index(min(costs))][:1] if micros else None
        assigned = self.ranks.deal(costs)
        return [(spare, False) if n is None else (micros[n], True) for n in assigned]  # type: ignore[misc]

    def shares(self, batch: Batch) -> list[tuple[str, Batch, Tensor | None]]:
        """The share of each adapter in the batch: its name, the rollouts in which it acts, with
        only its own policy tokens, and their rows in the batch's token table.

        A share that is all of the batch is the batch itself, and its rows are None.
        """
        if not self.adapters:
            return [("", batch, None)]
        if "adapter_T" not in batch:
            raise UserError(
                f"the run trains the adapters {', '.join(self.adapters)}, and a part has answers "
                "scored that belong to none of them: leave roles.play or that part out"
            )
        mask_T, adapter_T = batch["mask_T"], batch["adapter_T"]
        found: list[tuple[str, Batch, Tensor | None]] = []
        for number, name in enumerate(self.adapters):
            own_T = mask_T & (adapter_T == number)
            if torch.equal(own_T, mask_T):
                return [(name, batch, None)]
            if not bool(own_T.any()):
                continue
            has_B = segments.count(batch["rollout_T"], batch.size("B"), own_T) > 0
            masks = {name: batch[name] & own_T for name in MASKS if name in batch.columns}
            own = batch.set(**masks).keep(has_B)
            found.append((name, own, has_B[batch["rollout_T"]].nonzero().squeeze(1)))
        return found

    @property
    def acting(self) -> str:
        """The adapter that passes run under, of several; empty where there are none."""
        return self._under or "".join(self.adapters[:1])

    @contextmanager
    def under(self, adapter: str) -> Iterator[None]:
        """Inside, passes run under this adapter, and only it is trained; empty: no change."""
        routes = routes_of(self.model) if adapter else None
        if routes is None:
            yield
            return
        before, self._under = self._under, adapter
        try:
            with routes.under(adapter):
                yield
        finally:
            self._under = before

    def passes(self, batch: Batch) -> Iterator[tuple[Batch, Tensor, bool]]:
        """The forward passes of this process over a batch, each under the adapter of its rows:
        yields the rows' own batch, the places of its tokens in `batch`, and whether it counts.
        """
        for adapter, own, place_T in self.shares(batch):
            with self.under(adapter):
                for index_B, counts in self.turns(own):
                    rows = segments.rows_of(own["rollout_T"], index_B, own.size("B"))
                    yield own.take(index_B), rows if place_T is None else place_T[rows], counts

    def columns(self, batch: Batch, names: Sequence[str], temperature: float) -> dict[str, Tensor]:
        """Current columns [T] of every policy token, 0 elsewhere, without gradient."""
        return self._columns(batch, names, temperature)

    def divergence(self, batch: Batch, other: Policy, temperature: float) -> Tensor:
        """KL(current || other) [T] over the vocabulary at every policy token, 0 elsewhere."""
        return self._columns(batch, (), temperature, other)[KL]

    @torch.no_grad()
    def _columns(
        self, batch: Batch, names: Sequence[str], temperature: float, other: Policy | None = None
    ) -> dict[str, Tensor]:
        """Columns of the head, and the divergence from another policy where there is one."""
        batch = self.on_host(batch)
        wide = torch.promote_types(self.head(temperature).weight.dtype, torch.float32)
        empty = torch.zeros(batch.size("T"), dtype=wide, device=self.device)
        further = {} if other is None else {KL: Distribution(_kl, (OTHER,))}
        found = {name: empty.clone() for name in (*names, *further)}
        if NOW in found:
            assert self.experts is not None
            size = (batch.size("T"), self.experts.num_layers * self.experts.top_k)
            found[NOW] = torch.zeros(size, dtype=torch.int64, device=self.device)
        for micro, rows, counts in self.passes(batch):
            others = {}
            if other is not None:
                others = {OTHER: (other.whole_head(temperature), other.hidden(micro))}

            def measured(micro: Batch = micro, others: Others = others) -> dict[str, Tensor]:
                return self._measured(micro, names, temperature, further, others)

            values = self.compute(measured)
            drawn = to_device(rows[micro["mask_T"]], self.device)
            for name, value in values.items() if counts else ():
                found[name][rows if name == NOW else drawn] = value.to(found[name].dtype)
        return self.ranks.total(found)

    def _measured(
        self, micro: Batch, names: Sequence[str], temperature: float,
        further: Mapping[str, Distribution], others: Others,
    ) -> dict[str, Tensor]:  # fmt: skip
        """The columns of one pass: the head's and the routers'."""
        layout = self._layout(micro)
        with self._routed(micro, layout) as watch:
            passed = self._trunk(micro, layout, **_with_routers(names))
        hidden = passed.states.index_select(0, passed.before_T)
        own = tuple(name for name in names if name not in (NOW, BALANCE))
        found = head.columns(
            self.head(temperature), hidden, self._ids(micro), own,
            distributions=further, others=others, kept=kept_of(micro, self.device),
        )  # fmt: skip
        if BALANCE in names:
            found[BALANCE] = routing.balances(micro, passed)
        if NOW in names:
            assert watch is not None
            found[NOW] = routing.back(micro, watch.used(), layout)
        return found

    def compute(self, make: Callable[[], T]) -> T:
        """Call `make` while the weights are gathered."""
        if self.shell is not None:
            self.shell.release()
        return shards.compute(self.model, make)

    def whole(self) -> Policy:
        """Returns the policy with all weights in this process, for inference only."""
        if self.shell is None:
            return self
        self.shell.whole()
        return replace(self, model=self.shell.plain, optimiser=None, ranks=Ranks(), shell=None)

    def push(
        self,
        micro: Batch,
        names: Sequence[str],
        adjoints_of: AdjointsOf,
        whole: bool,
        temperature: float,
        distributions: Mapping[str, head.Distribution] | None = None,
        others: Mapping[str, tuple[head.Head, Tensor]] | None = None,
        seen: Callable[[Around], None] | None = None,
    ) -> dict[str, Tensor]:
        """Forward, adjoints and backward of one micro-batch; returns its columns.

        whole: `adjoints_of` must see all rows at once (its scope is wider than a token), so the
        columns are measured first over the same hidden states. seen: called with the states,
        without gradient.
        """
        layout, kept = self._layout(micro), kept_of(micro, self.device)
        own_names = tuple(name for name in names if name != BALANCE)

        def pass_forward(watch: Watch | None) -> tuple[Tensor, dict[str, Tensor]]:
            passed = self._trunk(micro, layout, **_with_routers(names))
            states, ids = passed.states, self._ids(micro)
            hidden = states.index_select(0, passed.before_T)
            if seen is not None:
                seen((hidden.detach(), states.detach().index_select(0, passed.after_T)))
            own, chosen = self.head(temperature), adjoints_of
            beside = head.ExtraColumns(
                {BALANCE: routing.balances(micro, passed)} if BALANCE in names else {}
            )
            if whole:
                with torch.no_grad():
                    values = head.columns(own, hidden.detach(), ids, own_names, kept=kept)
                known = adjoints_of(slice(None), values | beside.values(slice(None)))

                def chosen(rows: slice, _: dict[str, Tensor]) -> Mapping[str, Tensor]:
                    return {name: adjoint[rows] for name, adjoint in known.items()}

            loss, values = head.push_loss(
                own, hidden, ids, beside.split(chosen), own_names,
                distributions=distributions or {}, others=others or {}, kept=kept,
            )  # fmt: skip
            values |= beside.values(slice(None))
            if watch is not None and self.experts is not None:
                values |= routing.mismatch(micro, self.experts, watch, passed)
            return loss + beside.loss(), values

        # also for backward, in which checkpointed layers run again
        with attending(self.model, layout), self._routed(micro, layout) as watch:
            loss, values = self.compute(functools.partial(pass_forward, watch))
            loss.backward()
        return values

    def hidden(self, micro: Batch) -> Tensor:
        """Hidden states before the policy tokens of `micro`, as a reference reads the rollouts."""
        return self.around(reprompted(micro))[0]

    def _ids(self, micro: Batch) -> Tensor:
        """The policy tokens of `micro`."""
        return to_device(micro["id_T"][micro["mask_T"]], self.device)

    def on_host(self, batch: Batch) -> Batch:
        """The batch on the device that lays out its passes: the CPU, because a GPU would have to be
        waited for; for a mixture of experts, which lays out more, the device of the weights.
        """
        return batch.to(self.device if self.experts is not None else "cpu")

    def around(self, micro: Batch) -> Around:
        """Hidden states before and after the policy tokens of `micro`, in token order."""
        return self.compute(lambda: self._around(micro))

    def _around(self, micro: Batch) -> Around:
        layout = self._layout(micro)
        with self._routed(micro, layout):
            states, before_T, after_T, _ = self._trunk(micro, layout)
        return states.index_select(0, before_T), states.index_select(0, after_T)

    def _layout(self, micro: Batch) -> Layout | None:
        """Returns the forest of prefixes of `micro` if sharing saves work or memory requires it."""
        if self.share == "off":
            return None
        rows = routing.ids_by_experts(micro, self.replay) if self.replay else micro
        layout = prefix_sharing.layout(rows, self.share, self.width, self.token_budget, self.device)
        if layout is None or rows is micro:
            return layout
        ids_N = micro["id_T"][routing.token_of(layout.forest, micro)]
        return replace(layout, forest=replace(layout.forest, id_N=ids_N))

    @contextmanager
    def _routed(self, micro: Batch, layout: Layout | None) -> Iterator[Watch | None]:
        """Inside, a pass over `micro` replays experts if set, and records the routers' choices."""
        experts = self.experts
        if experts is None:
            yield None
            return
        replays = self.replay in micro
        with experts.watching(routing.placed(micro, self.replay, layout) if replays else None) as w:
            yield w

    def _trunk(self, micro: Batch, layout: Layout | None, **more: Any) -> Pass:
        """A pass of the trunk. more: its arguments beside the tokens."""
        context_T, num = micro.contexts()
        drawn_T = segments.rows_where(micro["mask_T"])
        place_T = segments.place_in_run(context_T, num)
        row_T, position_T = (segments.at(each_T, drawn_T) for each_T in (context_T, place_T))
        # A first token has no state before it; prompts that are only read do not need one.
        before_T = (position_T - 1).clamp(min=0)
        if layout is not None:
            with self.switch():
                output = pass_over(self.model, layout, **more)
            node_CL = layout.forest.node_CL
            row_T, before_T, position_T = (
                to_device(each_T, self.device) for each_T in (row_T, before_T, position_T)
            )
            before_T, after_T = node_CL[row_T, before_T], node_CL[row_T, position_T]
        else:
            ids_NL = to_padded(micro["id_T"], context_T, num)
            # Right padding under a causal mask: no token sees the padding, so no mask is needed.
            with self.switch(), attending_rows(self.model, self.share):
                output = trunk_of(self.model)(
                    input_ids=to_device(ids_NL, self.device), use_cache=False, **more
                )
            first_T = row_T * ids_NL.shape[1]
            before_T, after_T = (
                to_device(first_T + each_T, self.device) for each_T in (before_T, position_T)
            )
        states: Tensor = output.last_hidden_state
        return Pass(
            states.flatten(0, 1), before_T, after_T, getattr(output, "router_logits", None) or ()
        )

    def head(self, temperature: float) -> head.Head:
        """The model's head at a temperature."""
        return head_of(self.model, temperature)

    def whole_head(self, temperature: float) -> Head:
        """Returns the head with all its weights in this process, for another model's pass."""
        own = self.head(temperature)
        return replace(own, weight=shards.whole(own.weight), bias=shards.whole(own.bias))

    def token_rows(self, batch: Batch, index_B: Tensor) -> Tensor:
        """Token rows of `batch` that belong to the policy tokens of the rollouts `index_B`."""
        rows = segments.rows_of(batch["rollout_T"], index_B, batch.size("B"))
        return rows[batch["mask_T"][rows]]

    def zero_gradient(self) -> None:
        """Set all gradients to 0, so that an update without rows still makes an optimiser step."""
        own = weights_of(self.model, self._under) if self._under else self.parameters()
        for parameter in own:
            parameter.grad = torch.zeros_like(parameter)

    def forget_moments(self) -> None:
        """Reset the optimiser's averages."""
        assert self.optimiser is not None
        self.optimiser.state.clear()

    def update(self, lr: float) -> dict[str, float]:
        """One optimiser step at learning rate `lr`; gradients are clipped, checked and cleared.

        Raises RunStopped when a gradient is not finite; the weights are then as before.
        """
        assert self.optimiser is not None
        if self.shell is not None:
            self.shell.release()
        norm = clipped_step(self.optimiser, lr, self.max_grad_norm, "training.lr")
        return {"grad_norm": norm, "learning_rate": lr}

    def close(self) -> None:
        """Leave the weights to others: a model in memory may be trained again."""
        for hook in getattr(self.optimiser, "hooks", ()):
            hook.remove()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained parameters; with an optimiser, those that it steps (float32 masters)."""
        if self.optimiser is not None:
            return (p for group in self.optimiser.param_groups for p in group["params"])
        return (p for p in self.model.parameters() if p.requires_grad)


def kept_of(batch: Batch, device: torch.device) -> Kept | None:
    """The tokens that the policy tokens' log-probabilities are over; None: the whole vocabulary."""
    if KEPT_IDS not in batch.columns:
        return None
    drawn_T = segments.rows_where(batch["mask_T"])
    first_N, number_N = (segments.at(batch[name], drawn_T) for name in (KEPT_AT, NUM_KEPT))
    return Kept(*(to_device(each, device) for each in (batch[KEPT_IDS], first_N, number_N)))


def _with_routers(names: Sequence[str]) -> dict[str, bool]:
    """The trunk's arguments for columns of these names."""
    return {"output_router_logits": True} if BALANCE in names else {}


def _kl(rows: slice, logq_TV: Tensor, **others: Tensor) -> Tensor:
    """KL(current || other) [T]; a token that is impossible under the current policy adds 0."""
    q_TV = logq_TV.exp()
    return (q_TV * torch.where(q_TV > 0, logq_TV - others[OTHER], 0)).sum(-1)


def clipped_step(
    optimiser: torch.optim.Optimizer, lr: float, max_grad_norm: float, setting: str
) -> float:
    """Step at learning rate `lr` with gradients scaled down to a norm; returns the norm before.

    setting: the option to lower when a number is not finite. Raises RunStopped for a learning rate
    or gradient that is not finite, without changing the weights, and for weights that are no longer
    finite after the step.
    """
    if not abs(lr) < LARGEST_RATE:
        raise RunStopped(f"the learning rate is {lr}; correct {setting}, or the part that moves it")
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    norm = shards.whole(nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    if not torch.isfinite(norm):
        optimiser.zero_grad(set_to_none=True)
        raise RunStopped(
            f"the gradient is not finite (norm {float(norm)}); lower {setting}, or look for "
            "log-probabilities that are not finite in the newest rollouts that the run has written"
        )
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    check_finite(parameters, setting)
    return float(norm)


def check_finite(weights: Iterable[Tensor], setting: str) -> None:
    """Raise RunStopped when a weight is NaN or infinite. setting: the option to lower."""
    if not shards.all_finite(list(weights)):
        raise RunStopped(f"a weight is not finite; lower {setting}")


HALF = (torch.bfloat16, torch.float16)


class MasterAdamW(torch.optim.AdamW):
    """AdamW on float32 copies of half-precision weights, which follow them after each step.

    Near 1 a bfloat16 number has its next neighbour at a distance of 0.004 to 0.008: a step of
    1e-6 would be rounded away, every time. The float32 copy (the master) takes it; the weight is
    the master rounded. Gradients are added up in float32 too: as soon as a backward pass has a
    weight's gradient, it moves to the master, so no half-precision gradient is kept.

    Masters are what `param_groups` holds, so clip those; weights of float32 and above are their
    own masters and nothing is copied. `state_dict` holds the masters, so a run resumes exactly.
    """

    def __init__(self, weights: Iterable[nn.Parameter], **options: Any) -> None:
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # weight, its float32 master
        self.hooks: list[Any] = []  # that take the weights' gradients, until they are removed
        masters = []
        for weight in weights:
            weight.grad = None  # that of another loop, or of a run that broke off
            master = weight
            if weight.dtype in HALF:
                master = nn.Parameter(weight.detach().float())
                self.pairs.append((weight, master))
                self.hooks.append(weight.register_post_accumulate_grad_hook(_to(master)))
            masters.append(master)
        super().__init__(masters, **options)

    def step(self, closure: Any = None) -> Any:
        """Step the masters and copy them into the weights."""
        loss = super().step(closure)
        with torch.no_grad():
            for weight, master in self.pairs:
                weight.copy_(master)
        return loss

    def _init_group(self, group: Any, *tensors: Any) -> Any:
        """Passes this process's parts of sharded tensors to the step: an element's step needs no
        other element, and torch would look up the sharding for each operation.
        """
        found = super()._init_group(group, *tensors)
        for column in tensors:
            if isinstance(column, list):  # torch 2.6 has a flag among them
                column[:] = map(shards.local, column)
        return found

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state and the masters, in shards where the weights are."""
        return {**super().state_dict(), "masters": [master.detach() for _, master in self.pairs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the weights become the rounded masters."""
        state = dict(state_dict)
        masters: list[Tensor] = state.pop("masters")
        super().load_state_dict(shards.parted_state(state, self))
        with torch.no_grad():
            for (weight, master), saved in zip(self.pairs, masters, strict=True):
                shards.put(saved, master)
                weight.copy_(master)


def _to(master: nn.Parameter) -> Any:
    """Returns a hook that moves a weight's new gradient to its master."""

    def move(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient, weight.grad = weight.grad, None
        if master.grad is None:
            master.grad = gradient.float()
        else:
            master.grad.add_(gradient)

    return move
