"""The base of every strategy: its sampling options, and the methods that a run calls.

`assemble` turns what an engine reported into the four tables of a batch, `assemble_turns` episodes.
`roll_out` runs a strategy to its end, a `Crowd` runs several concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from strop.batch.batch import EXPERTS, Batch, turn_columns
from strop.batch.kept import kept_columns
from strop.engines.asynchronous import LOOK_SECONDS, EngineLoop, asynchronous, on, run
from strop.engines.base import Account, Answer, Ends, Engine, Event, Request
from strop.engines.rules import MinP, TopK, TopP
from strop.method.chains import plain_numbers
from strop.method.part import Draw, Use, naming, require, require_one_of
from strop.method.services import ALONE, Player, Sampling, Services, Texts
from strop.support.errors import UserError
from strop.support.exits import Exit

# The result of a strategy, once awaited: its batch, its state (None: it keeps none), any metrics.
Rollouts: TypeAlias = tuple[Batch, Any] | tuple[Batch, Any, Mapping[str, float]]
# The metric of tokens that were drawn for a strategy and are in no rollout.
TOKENS_DISCARDED = "rollout/tokens_thrown_away"
TOKENS_SHARED = "rollout/tokens_shared"
# The metric of tokens that were drawn by weights that are not trained.
OF_OTHERS = "rollout/tokens_of_opponents"
MASKS = ("ignore", "weigh", "renormalise")
SPREAD = 0x9E3779B97F4A7C15  # seeds that differ by multiples of it have nothing in common
MOST_KEPT = 512  # tokens of a recorded kept set, beside those as likely as the last


@dataclass(frozen=True)
class SamplingFields:
    """token ~ softmax(logits / temperature), cut by top_k, then top_p, then min_p.

    A strategy inherits these fields, `class SampleTwice(SamplingFields)`, and its requests carry
    them, by `requests`. A run calls the methods after that.
    """

    # Whether each of its roles may have weights of its own.
    knows_roles: ClassVar[bool] = False
    # Whether it plays episodes, so that the task must be an environment.
    needs_environment: ClassVar[bool] = False
    # Whether it reads rollouts that were recorded, so that the task must have some.
    needs_traces: ClassVar[bool] = False
    # Whether it takes rollouts that others post, so that the task must be open to them.
    needs_live: ClassVar[bool] = False
    # Whether it runs an agent, so that the task must be one.
    needs_agent: ClassVar[bool] = False
    # Whether it stops answers that are being drawn, so that its result depends on timing.
    ends_others: ClassVar[bool] = False
    # Whether a draw's rollouts do not depend on the other draws, and it keeps no state: a run that
    # collects ahead then starts and ends each draw by itself.
    by_draw: ClassVar[bool] = False
    # Metrics that are above 0 where its rollouts differ from those of `sample_independently`, whose
    # draws it has otherwise; empty: it always draws in its own way.
    acted: ClassVar[tuple[str, ...]] = ()

    # Most new tokens; 0: the task's own limit. Default: ours (tasks know their answers' length).
    max_tokens: int = 0
    # Of the softmax; the trainer takes all log-probabilities at it. Default: paper (1.0).
    temperature: float = 1.0
    # Smallest set of likeliest tokens with at least this mass; 1: all. Default: ours (off).
    top_p: float = 1.0
    # Number of likeliest tokens kept; 0: all. Default: ours (off).
    top_k: int = 0
    # Tokens below this share of the likeliest token's probability are cut. Default: ours (off).
    min_p: float = 0.0
    # What the learner makes of a cut: ignore, weigh or renormalise (docs/SAMPLING_MASKS.md).
    # Default: ours (ignore).
    sampling_mask: str = "ignore"

    def __post_init__(self) -> None:
        require(self, "max_tokens", "top_k", low=0)
        require(self, "temperature", low=1e-3)
        require(self, "top_p", low=1e-6, high=1.0)
        require(self, "min_p", low=0.0, high=1.0)
        require_one_of(self, "sampling_mask", MASKS)

    @property
    def given(self) -> tuple[str, ...]:
        """Columns of the data that its answers are read from; empty for one that samples."""
        return ()

    @property
    def needs(self) -> frozenset[str]:
        """The capabilities that an engine needs besides sampling."""
        needs = {"rules"} if self.cuts else set()
        return frozenset(needs | ({"kept"} if self.renormalises else set()))

    @property
    def cuts(self) -> bool:
        """Whether top_p, top_k or min_p cuts; a schedule, before the run, counts as a cut."""
        return self.top_p != 1 or self.top_k != 0 or self.min_p != 0

    @property
    def renormalises(self) -> bool:
        """Whether the learner's policy is the cut one, so that every draw reports what was kept."""
        return self.sampling_mask == "renormalise" and self.cuts

    def rules(self) -> tuple[Any, ...]:
        """The cuts on the logits that differ from their defaults. Recorded kept sets have a largest
        size: without top_k, MOST_KEPT.
        """
        bound = MOST_KEPT if self.renormalises else 0
        found: list[Any] = [TopK(self.top_k or bound)] if self.top_k or bound else []
        found += [TopP(self.top_p)] if self.top_p < 1 else []
        return (*found, *([MinP(self.min_p)] if self.min_p else []))

    def sampling(self) -> dict[str, Any]:
        """Only these fields, by name."""
        return {field.name: getattr(self, field.name) for field in fields(SamplingFields)}

    def request(
        self, sampling: Sampling, ids: Sequence[int], seed: int, max_tokens: int = 0, **others: Any
    ) -> Request:
        """A request that continues `ids`; max_tokens 0: as usual; others: fields of the Request."""
        settings: dict[str, Any] = {
            "max_tokens": max_tokens or self.max_tokens or sampling.answer_tokens,
            "temperature": self.temperature,
            "rules": self.rules(),
            "stop_ids": sampling.stop_ids,
            "stop_strings": sampling.stop_strings,
            "want": sampling.wanted_statistics,
        }
        request = Request(tuple(ids), seed=seed, **(settings | others))
        return replace(request, want=request.want | {"kept"}) if self.renormalises else request

    def requests(
        self, draws: Sequence[Draw], texts: Texts, sampling: Sampling, rng: torch.Generator
    ) -> list[Request]:
        """One request a rollout, in the order of the draws, each with its own seed.

        A draw with the column `prompt_ids` has these tokens in place of its prompt's.
        """
        total = sum(draw.num_rollouts for draw in draws)
        seeds = iter(torch.randint(2**62, (total,), generator=rng).tolist())
        return [
            self.request(sampling, ids, next(seeds))
            for draw in draws
            for ids in [draw.columns.get("prompt_ids") or texts.prompt_ids(draw.uid)]
            for _ in range(draw.num_rollouts)
        ]

    def new_tokens(self, usual: int, environment: Any = None) -> tuple[int, int]:
        """Most new tokens of an answer, and of a rollout; where episodes are played, of an action
        and of all of them. The run's limits are made from this.

        usual: of an answer to the task, where the strategy does not say. environment: that of the
        task, with its `max_turns` and `max_tokens`; None: there is none.
        """
        tokens = self.max_tokens or usual
        return tokens, tokens


COLUMNS = (
    "turn_T", "id_T", "mask_T", "origin_T", "version_T", "logp_behavior_T", "logp_sampler_T",
    "entropy_behavior_T",
    "rollout_K", "index_K", "group_B", "rollout_uid_B", "truncated_B", "exit_B", "parent_B",
    "fork_at_B", "uid_P", "draw_P",
)  # fmt: skip
# of an environment
TURN_COLUMNS = ("reward_K", "done_K", "state_K", "action_K", "role_K", "valid_K", "match_K")


@dataclass
class Turn:
    """Tokens that the policy was given, the events of its action, and what the action did."""

    given: Sequence[int]
    events: Sequence[Event]
    state: int = 0  # key of the state before the action
    role: int = 0
    action: int = 0  # key of the action's text
    reward: float = 0.0
    done: bool = False
    valid: bool = True
    match: bool = True  # the action was the one that was wanted
    opens: bool = False  # what it was given is a context of its own
    player: Player = ALONE

    def as_context(self) -> Turn:
        """The turn as context: the action of weights that are not trained counts as given."""
        if self.player.number >= 0:
            return self
        return replace(self, given=(*self.given, *_ids(self.events)), events=())


def assemble(
    draws: Sequence[Draw], answers: Sequence[Answer], players: Sequence[Player] = ()
) -> Batch:
    """One single-turn rollout per answer, in order; answers of a draw lie together. players: who
    drew each answer, where there are several.

    A rollout with a request that failed is lost: it is not scored.
    What the requests did not ask for of "logp_model" and "entropy" is void (NaN). The prompt's
    tokens have mask 0 and log-probabilities 0.
    """
    return assemble_turns(
        draws,
        [answer.request.seed for answer in answers],
        [
            [Turn(answer.request.ids, answer.events, player=player)]
            for answer, player in zip(answers, players or [ALONE] * len(answers), strict=True)
        ],
        [answer.ended == "length" for answer in answers],
    )


def assemble_turns(
    draws: Sequence[Draw],
    seeds: Sequence[int],
    rollouts: Sequence[Sequence[Turn]],
    truncated: Sequence[bool],
) -> Batch:
    """One rollout per list of turns, in order; rollouts of a draw lie together.

    Each turn's given tokens (mask 0, origin 1) stand before its action's; all tokens are given
    where the turn is of weights that are not trained. Columns of rewards and states are left to
    `with_turns`. Raises UserError for another number of rollouts than the draws have.
    """
    if len(rollouts) != (wanted := sum(draw.num_rollouts for draw in draws)):
        raise UserError(
            f"the strategy gives {len(rollouts)} rollouts for draws of {wanted}: give one for "
            "each, or draws with the number that each has, draw._replace(num_rollouts=...)"
        )
    turns = [turn.as_context() for turn in chain.from_iterable(rollouts)]
    tokens = turn_columns((turn.given, _ids(turn.events)) for turn in turns)
    turn_T, mask_T = tokens["turn_T"], tokens["mask_T"]
    turns_B = torch.tensor([len(each) for each in rollouts])
    rollout_K = torch.repeat_interleave(torch.arange(len(rollouts)), turns_B)
    first_B = torch.cumsum(turns_B, 0) - turns_B
    events = [event for turn in turns for event in turn.events]
    versions = [[e.version] * len(e.ids) for e in events]
    alone = torch.full((len(rollouts),), -1)
    group_B = torch.repeat_interleave(
        torch.arange(len(draws)), torch.tensor([draw.num_rollouts for draw in draws])
    )
    return Batch(
        {
            **tokens,
            "origin_T": torch.where(mask_T, 0, 1),
            "version_T": _answer_column(versions, mask_T, torch.int64),
            "logp_behavior_T": _answer_column([e.logp for e in events], mask_T),
            "logp_sampler_T": _answer_column([e.values_of("logp_model") for e in events], mask_T),
            "entropy_behavior_T": _answer_column([e.values_of("entropy") for e in events], mask_T),
            "rollout_K": rollout_K,
            "index_K": torch.arange(len(turns)) - first_B[rollout_K],
            "group_B": group_B,
            "rollout_uid_B": torch.tensor(seeds),
            "truncated_B": torch.tensor(truncated),
            "exit_B": torch.tensor(
                [_exit(each, cut) for each, cut in zip(rollouts, truncated, strict=True)],
                dtype=torch.int64,
            ),
            "parent_B": alone,
            "fork_at_B": alone.clone(),
            "uid_P": torch.tensor([draw.uid for draw in draws]),
            "draw_P": torch.tensor([draw.draw for draw in draws]),
            **_adapters(turns, turn_T),
            **_kept(events, mask_T),
            **_experts(turns, turn_T, first_B),
        }
    )


def _kept(events: Sequence[Event], mask_T: Tensor) -> dict[str, Tensor]:
    """The columns of the kept sets, where the engine has reported some."""
    if not any(event.kept for event in events):
        return {}
    unknown = chain.from_iterable(e.kept or (None,) * len(e.ids) for e in events)
    return kept_columns(list(unknown), mask_T)


def _adapters(turns: Sequence[Turn], turn_T: Tensor) -> dict[str, Tensor]:
    """The column of who acts in each turn, where it is not one policy in all."""
    if not any(turn.player.weights for turn in turns):
        return {}
    return {"adapter_T": torch.tensor([turn.player.number for turn in turns])[turn_T]}


def _experts(turns: Sequence[Turn], turn_T: Tensor, first_B: Tensor) -> dict[str, Tensor]:
    """The column of the experts that tokens went through, where the engine reported them.

    What an action's request reported ends before its last token, and begins with its context.
    """
    experts = [[each for event in _reported(turn) for each in event.experts] for turn in turns]
    width = next((len(each[0]) for each in experts if each), 0) // 2
    if not width:
        return {}
    found = np.full((turn_T.shape[0], width), -1, dtype=np.int16)
    size_K = torch.bincount(turn_T, minlength=len(turns))
    end_K = size_K.cumsum(0).tolist()
    opens, started = set(first_B.tolist()), 0
    for number, (turn, passes, end) in enumerate(zip(turns, experts, end_K, strict=True)):
        if number in opens or turn.opens:
            started = end - int(size_K[number])
        own = passes[max(len(passes) - (end - 1 - started), 0) :]
        if own:
            place = found[end - 1 - len(own) : end - 1]
            unknown = place[:, 0] < 0
            place[unknown] = np.frombuffer(b"".join(own), np.int16).reshape(-1, width)[unknown]
    return {EXPERTS: torch.from_numpy(found)}


def _reported(turn: Turn) -> Sequence[Event]:
    """The turn's events; none where its end was not drawn: nothing says where passes belong."""
    ends = [event for event in turn.events if event.ids]
    return turn.events if ends and ends[-1].experts else ()


def _ids(events: Sequence[Event]) -> list[int]:
    """The tokens of an action."""
    return list(chain.from_iterable(event.ids for event in events))


def _exit(turns: Sequence[Turn], truncated: bool) -> Exit:
    """How a rollout ended."""
    if any(event.ended == "failed" for turn in turns for event in turn.events):
        return Exit.ENGINE_LOST
    return Exit.TOKEN_LIMIT if truncated else Exit.DONE


def with_turns(batch: Batch, rollouts: Sequence[Sequence[Turn]]) -> Batch:
    """The batch of these rollouts with the environment's results for each turn."""
    turns = list(chain.from_iterable(rollouts))
    return batch.set(
        reward_K=torch.tensor([turn.reward for turn in turns], dtype=torch.float32),
        done_K=torch.tensor([turn.done for turn in turns], dtype=torch.bool),
        state_K=torch.tensor([turn.state for turn in turns], dtype=torch.int64),
        action_K=torch.tensor([turn.action for turn in turns], dtype=torch.int64),
        role_K=torch.tensor([turn.role for turn in turns], dtype=torch.int64),
        valid_K=torch.tensor([turn.valid for turn in turns], dtype=torch.bool),
        match_K=torch.tensor([turn.match for turn in turns], dtype=torch.bool),
    )


def with_contexts(batch: Batch, rollouts: Sequence[Sequence[Turn]]) -> Batch:
    """The batch of these rollouts with the contexts that its turns opened."""
    opens_K = torch.tensor([turn.opens for turn in chain.from_iterable(rollouts)], dtype=torch.bool)
    return batch.set(sequence_T=opens_K.long().cumsum(0)[batch["turn_T"]])


def _answer_column(
    pieces: Sequence[Sequence[Any]], mask_T: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A token column from values of the generated tokens only; 0 elsewhere."""
    column = torch.zeros(mask_T.shape[0], dtype=dtype)
    values = list(chain.from_iterable(pieces))
    if values:
        column[mask_T] = torch.tensor(values, dtype=dtype)
    return column


Strategy: TypeAlias = Coroutine[Any, Any, Rollouts]


async def named(use: Use, strategy: Strategy) -> Rollouts:
    """The strategy of this part; an error of its code names the part and the line."""
    with naming(use, type(use.part).__call__, None):
        return await strategy


class RolledOut(NamedTuple):
    """The result of a rollout strategy."""

    batch: Batch
    state: Any
    num_discarded: int  # tokens that the engine drew for it and that are not in the batch
    metrics: Mapping[str, float] = {}


def roll_out(strategy: Strategy, engine: Engine, services: Services | None = None) -> RolledOut:
    """Run a strategy to its end. Raises UserError where all of its requests failed.

    A strategy with tokens of other steps reports `rollout/tokens_thrown_away` itself.
    """
    account = account_of(services)
    returned = run(asynchronous(engine), strategy, account)
    account.ends.check()
    return _rolled_out(returned, account)


def account_of(services: Services | None) -> Account:
    """An account that reports its failures to the run's services."""
    return Account() if services is None else Account(services.sampling.failures.append)


class Crowd:
    """Rollout strategies that share one engine; each starts and ends by itself."""

    def __init__(self, engine: Engine, services: Services | None = None) -> None:
        self.engine, self.services = asynchronous(engine), services
        self.loop = EngineLoop(self.engine)
        self.runs: dict[Any, tuple[asyncio.Task[Any], Account]] = {}  # by the argument of `begin`

    def begin(self, key: Any, strategy: Strategy) -> None:
        """Run a strategy beside the others from the next turn on."""
        account = account_of(self.services)
        self.runs[key] = self.loop.create_task(on(account, strategy)), account

    def left(self, key: Any, size: int) -> int:
        """How many of a running strategy's `size` rollouts have not ended; more may be open.

        Between two turns what follows an ended request, such as an episode's next one, has started.
        """
        _, account = self.runs[key]
        return max(size - (account.num_started - len(account.open)), len(account.open))

    def turn(self) -> list[tuple[Any, RolledOut, Ends]]:
        """Let the engine step once, without a long wait; returns the strategies that have ended,
        with their keys.
        """
        self.loop.run_until_complete(self._turn())
        return [self._end(key) for key, (task, _) in list(self.runs.items()) if task.done()]

    async def _turn(self) -> None:
        await self.engine.settled(outer=True)
        if not any(task.done() for task, _ in self.runs.values()):
            self.engine.step(LOOK_SECONDS)  # other awaited work ends in between
            await self.engine.settled(outer=True)  # what follows the ends of this step has started

    def _end(self, key: Any) -> tuple[Any, RolledOut, Ends]:
        task, account = self.runs.pop(key)
        self.engine.close(account)
        return key, _rolled_out(task.result(), account), account.ends

    def close(self) -> None:
        """Cancel all that are running."""
        for _, account in self.runs.values():
            self.engine.close(account)
        self.runs = {}
        if not self.loop.is_closed():
            self.loop.end()


def _rolled_out(returned: Any, account: Account) -> RolledOut:
    """The result of a strategy that has ended. Raises UserError where it is not a valid one."""
    several = isinstance(returned, tuple) and len(returned) in (2, 3)
    batch, state, given = (*returned, {})[:3] if several else (returned, None, {})
    if not several or not isinstance(batch, Batch):
        raise UserError(
            f"the strategy returned {type(batch).__name__}; it returns its batch and its state, "
            "which is None where it keeps none"
        )
    metrics = plain_numbers("the strategy", given)
    drawn = account.num_drawn - int(metrics.get(OF_OTHERS, 0))
    discarded = int(metrics.get(TOKENS_DISCARDED, max(drawn - _drawn_in(batch), 0)))
    logged = {name: value for name, value in metrics.items() if name != TOKENS_DISCARDED}
    if shared := shared_in(batch):
        logged[TOKENS_SHARED] = shared
    return RolledOut(batch, state, discarded, logged)


def _drawn_in(batch: Batch) -> int:
    """Tokens of a batch that an engine drew, those that rollouts share counted once."""
    drawn_T = batch["mask_T"] & (batch["origin_T"] == 0)
    return int(drawn_T.sum()) - shared_in(batch)


def shared_in(batch: Batch) -> int:
    """Tokens that rollouts have from those they forked from."""
    return int(batch["fork_at_B"].clamp(min=0).sum())
