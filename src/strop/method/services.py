"""What a run offers to its parts beside columns: small protocols, one for each kind of question.

A part names the services that it needs as parameters of its call, `texts: Texts, grading: Grading`,
and does not know which objects implement them: the trainer's own, or a test's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strop.data.tool_calls import Call as Call
from strop.engines.base import Answer as Answer

# Re-exported for parts, which import nothing below this module.
from strop.engines.base import Event as Event
from strop.engines.base import Request as Request
from strop.serving.intake import Taken as Taken
from strop.serving.protocol import ModelAnswer as ModelAnswer
from strop.serving.protocol import ModelCall as ModelCall
from strop.serving.protocol import Refused as Refused
from strop.support.exits import Exit
from strop.traces.records import Rollout as Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from strop.batch.batch import Batch
    from strop.environments.episodes import Episodes as Playing
    from strop.environments.tools import ToolAnswer

# A column [B] int among those that a part's state keeps under "columns": its files, by number.
FILE = "stored_file_B"


class Player(NamedTuple):
    """The weights that play a role.

    weights: the adapter, as requests name it; empty: there is one policy. number: the index of the
    adapter among the trained ones; -1: it is not trained.
    """

    weights: str = ""
    number: int = 0


ALONE = Player()


class Graded(NamedTuple):
    """Scores of a batch: components [B, M] (NaN: none), weighted sum [B], scored [B], metrics.

    exit_B: why each rollout has its score, as numbers of `strop.support.exits.Exit`.
    """

    reward_BM: Tensor
    outcome_B: Tensor
    scored_B: Tensor
    metrics: dict[str, float]
    exit_B: Tensor


class Texts(Protocol):
    """Prompts and answers: as rows of the data, as texts, as tokens."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the tokenizer knows."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that stand for no text."""
        ...

    @property
    def mixture(self) -> Sequence[tuple[str, int, float]]:
        """The sources of the training prompts: name, the uid after its last prompt, weight."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, without special tokens added."""
        ...

    def first_known(self, words: Sequence[str], option: str) -> str:
        """The first of these wordings whose characters the tokenizer knows.

        {names} in braces do not count. Raises UserError, with the option that takes other words,
        where the tokenizer can write none of them.
        """
        ...

    def decode(self, ids: Sequence[int], special: bool = True) -> str:
        """The text of token ids; special: including the special tokens."""
        ...

    def row(self, uid: int) -> Mapping[str, Any]:
        """The columns of a prompt's row in the data."""
        ...

    def values(self, column: str, uids: Sequence[int]) -> Sequence[Any]:
        """A column of these prompts' rows, None where a row lacks it. For the same sequence, such
        as a run's pool, the data are read once.
        """
        ...

    def prompt_ids(self, uid: int) -> tuple[int, ...]:
        """Token ids of a prompt."""
        ...

    def prompt_text(self, uid: int) -> str:
        """A prompt as the model sees it."""
        ...

    def question(self, uid: int) -> str:
        """A prompt's own text, or that of its last message."""
        ...

    def reworded_ids(self, uid: int, words: str, answer: Sequence[int]) -> tuple[int, ...]:
        """Token ids of a prompt reworded with an answer to it; empty where they do not fit."""
        ...

    def answer_ids(self, uid: int, column: str = "completion", end: bool = True) -> tuple[int, ...]:
        """Token ids of a given answer, with or without its end; empty when the row has none."""
        ...

    def recorded(self, uid: int) -> Sequence[Rollout]:
        """The recorded rollouts of a prompt. Raises UserError where there are none."""
        ...

    def decoded(self, batch: Batch) -> tuple[list[Any], list[str]]:
        """Prompts (as given) and decoded answers, one of each per rollout."""
        ...

    def completion_ids(self, batch: Batch) -> list[list[int]]:
        """Token ids that the policy generated, per rollout."""
        ...


class Grading(Protocol):
    """How reward functions and the environment score rollouts."""

    @property
    def can_grade(self) -> bool:
        """Whether something scores answers."""
        ...

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Names of the rewards in the order of `reward_BM`."""
        ...

    @property
    def reward_weights(self) -> tuple[float, ...]:
        """The weight of each reward in the outcome."""
        ...

    def grade(self, batch: Batch) -> Graded:
        """The scores of the batch's rollouts."""
        ...

    def grade_beside(self, batch: Batch, opponents: Sequence[str]) -> Graded:
        """The scores where each answer is graded beside another answer's text."""
        ...

    def final_answers(self, texts: Sequence[str]) -> list[str | None]:
        """The final answer in each text, as the task reads it."""
        ...


class Sampling(Protocol):
    """How this run draws and ends answers, and a way to draw more of them.

    answer_tokens: most new tokens of an answer, or of an action where episodes are played;
    episode_tokens: most of an answer or of all actions of an episode; context_tokens: most tokens
    of a sequence. wanted_statistics: the statistics of tokens that engines report. failures: why
    requests of this step failed.
    """

    @property
    def answer_tokens(self) -> int: ...
    @property
    def episode_tokens(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    @property
    def stop_strings(self) -> tuple[str, ...]: ...
    @property
    def wanted_statistics(self) -> frozenset[str]: ...
    @property
    def failures(self) -> list[str]: ...

    def request(self, ids: Sequence[int], max_tokens: int, seed: int, **changes: Any) -> Request:
        """A request for `sample` at the rollouts' temperature, with their stops; `changes` sets
        other fields.
        """
        ...

    def players(self, game: int) -> Callable[[int], Player]:
        """The player of each role of a game. game: a number that no other game of the run has."""
        ...

    def sample(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers by the engine's current weights, in the order of the requests."""
        ...

    @property
    def explores(self) -> bool:
        """Whether the run keeps an average of its policies to explore with."""
        ...

    def sample_explorer(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers by that average; their tokens count as those of rollouts."""
        ...

    def sample_newest(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers by the newest weights; their tokens count as those of rollouts."""
        ...


class Scoring(Protocol):
    """How the run's policies score given tokens: "current", and "ref" or "critic" if any."""

    @property
    def policies(self) -> Container[str]:
        """The policies that the run has."""
        ...

    @property
    def context_tokens(self) -> int:
        """Most tokens of a sequence."""
        ...

    def score(self, batch: Batch, policy: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """The named columns of the batch under a policy."""
        ...

    def hidden(self, batch: Batch) -> Iterator[tuple[list[int], tuple[Tensor, ...]]]:
        """Rollouts, and the current policy's last hidden states [tokens, width] of their tokens."""
        ...

    def gradient_norms(self, batch: Batch) -> Tensor:
        """Norm [B] of the gradient of each rollout's log-probability under the current policy."""
        ...

    def embeddings(self) -> Tensor:
        """The current policy's input embeddings [V, width]."""
        ...


class Log(Protocol):
    """Values that are logged for each rollout beside its columns, for the table of rollouts."""

    @property
    def logged(self) -> Mapping[str, Mapping[int, Any]]:
        """The values logged in this step: column -> rollout -> value."""
        ...

    def log_rollouts(self, name: str, values: Mapping[int, Any]) -> None:
        """Keep a column, by rollout, until the next step."""
        ...


class Episodes(Protocol):
    """The task's environment, and how its observations and actions are written in tokens.

    are_played: whether the task has an environment.
    """

    @property
    def are_played(self) -> bool: ...

    def begin_episodes(self, uids: Sequence[int]) -> Playing:
        """One episode of the environment per uid."""
        ...

    def observation_ids(
        self, text: str, last: int, answers: tuple[ToolAnswer, ...] = (),
        so_far: Sequence[int] = (), num_new: int = 0,
    ) -> tuple[int, ...]:  # fmt: skip
        """Tokens that show an observation after an action whose last token is `last`; in a chat
        they show the tools' answers, where there are any. so_far: the sequence, where it is known,
        with the action's tokens as its last num_new.
        """
        ...

    @property
    def drops_thoughts(self) -> bool:
        """Whether a turn sees of earlier turns' thoughts only what the chat template shows."""
        ...

    def rewritten_ids(
        self, shown: Sequence[Any], actions: Sequence[str], newest: int
    ) -> tuple[int, ...]:
        """Tokens of the conversation of these observations and actions, where the chat template
        leaves out thoughts of actions from `newest` on; empty where it shows all of them.
        """
        ...

    def context_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of a text that is a turn's whole context, however long."""
        ...

    def opening_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of the first text that is shown to a player who does not begin the episode."""
        ...

    def action_texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Actions as the environment reads them."""
        ...

    def tool_calls(self, actions: Sequence[str]) -> list[list[Call]]:
        """The tool calls that each action makes."""
        ...

    def read_calls(self, given: Sequence[object]) -> list[Call]:
        """Calls from JSON objects or their texts."""
        ...


class AgentEnd(NamedTuple):
    """How an agent's episode ended, and what it returned: a number, numbers by name, or None.

    rollout: its calls, where the process that ran the agent recorded them too. timed_out: it raised
    the error of a limit of time.
    """

    exit: Exit
    why: str = ""
    value: Any = None
    rollout: Rollout | None = None
    timed_out: bool = False


class Withdrawn(NamedTuple):
    """The agent no longer waits for the answer to this call, and has not received it."""

    call_id: str


class AgentEpisode(Protocol):
    """One running call of an agent's function."""

    async def next(self) -> ModelCall | Withdrawn | AgentEnd:
        """Wait for the agent's next call of the model, a withdrawn call, or its end, which may be
        that it took too long.
        """
        ...

    def reply(self, call: ModelCall, answers: list[ModelAnswer]) -> None:
        """Give a call its answers."""
        ...

    def refuse(self, call: ModelCall, why: Refused) -> None:
        """Give a call an error."""
        ...


class Agents(Protocol):
    """The task's agent. are_judged: whether reward functions also score its rollouts."""

    @property
    def are_judged(self) -> bool: ...

    def begin(self, uid: int) -> AbstractAsyncContextManager[AgentEpisode]:
        """Start an episode with the row of a prompt; it ends when the context exits."""
        ...


class ModelCalls(Protocol):
    """Clients' calls of the model, in the order in which they arrive."""

    async def event(self) -> Any:
        """Wait for the next call, a `ModelCall`, or for a withdrawn one."""
        ...

    def reply(self, call: ModelCall, answers: list[ModelAnswer]) -> None:
        """Give a call its answers."""
        ...

    def refuse(self, call: ModelCall, why: Exception) -> None:
        """Give a call an error."""
        ...


class Live(Protocol):
    """Rollouts that clients post while the run trains, and their calls of the model.

    served: what the strategy stores about calls from one step to the next.
    """

    served: Any

    @property
    def calls(self) -> ModelCalls: ...

    def listen(self, draws: Sequence[Any], version: Callable[[], int]) -> None:
        """Start to answer calls, and to accept rollouts for the current step.

        draws: they give the number of groups and of rollouts in each. version: the version of the
        weights that draw. Raises UserError for draws that ask for a certain prompt.
        """
        ...

    def take(self, num_groups: int, taken: int) -> Taken | None:
        """The next complete groups after the first `taken`; None: there are too few so far.

        Raises StepGivenUp where the run has to end.
        """
        ...

    def pause(self) -> None:
        """Stop answering: clients are asked to retry later."""
        ...

    def rollouts(self, taken: Taken) -> list[tuple[int, int, list[Rollout]]]:
        """For each group: the uid of its task, its own number, and its rollouts."""
        ...


class Stores(Protocol):
    """Columns of tokens that are stored across steps, on disk where the run has a folder.

    A file stays as long as its number is in the column `FILE` of a part's state, either the current
    state or that of a checkpoint that is kept.
    """

    def put(self, step: int, columns: Mapping[str, Tensor]) -> int:
        """Write a file and return its number."""
        ...

    def get(self, number: int) -> Mapping[str, Tensor]:
        """The columns of a file. Raises UserError where the file is missing or has changed."""
        ...


class Services(Protocol):
    """All services, under the parameter names by which parts request them."""

    @property
    def texts(self) -> Texts: ...
    @property
    def grading(self) -> Grading: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def scoring(self) -> Scoring: ...
    @property
    def log(self) -> Log: ...
    @property
    def episodes(self) -> Episodes: ...
    @property
    def agents(self) -> Agents: ...
    @property
    def live(self) -> Live: ...
    @property
    def stores(self) -> Stores: ...
