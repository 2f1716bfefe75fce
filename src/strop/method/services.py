"""What a run offers to its parts beside columns: small protocols, one for each kind of question.

A part names those that it needs as parameters of its call, `texts: Texts, grading: Grading`, and
knows nothing of what stands behind them: the trainer's own objects, or a test's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strop.data.tool_calls import Call as Call
from strop.engines.base import Answer as Answer

# Handed on to parts, which import nothing below this.
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

# The column [B] int, of what a part's state keeps under "columns", with the numbers of its files.
FILE = "stored_file_B"


class Player(NamedTuple):
    """Whose weights play a role.

    weights: the adapter, as requests name it; empty: there is one policy. number: of the adapter
    among those that are trained; -1: it is not.
    """

    weights: str = ""
    number: int = 0


ALONE = Player()


class Graded(NamedTuple):
    """Scores of a batch: components [B, M] (NaN: none), weighted sum [B], scored [B], metrics.

    exit_B: why each has the score that it has, numbers of `strop.support.exits.Exit`.
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
        """Tokens that are no text."""
        ...

    @property
    def mixture(self) -> Sequence[tuple[str, int, float]]:
        """Where the training prompts are from: name, the uid behind its last, weight."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, nothing added."""
        ...

    def first_known(self, words: Sequence[str], option: str) -> str:
        """The first of these words in whose letters the tokenizer can write.

        {names} in braces are no letters. Raises UserError, with the option that takes other words,
        where it can write none of them.
        """
        ...

    def decode(self, ids: Sequence[int], special: bool = True) -> str:
        """The text of token ids; special: with those that are no text."""
        ...

    def row(self, uid: int) -> Mapping[str, Any]:
        """The columns of a prompt's row in the data."""
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
        """Token ids of a prompt reworded with an answer to it; empty where it has no room."""
        ...

    def answer_ids(self, uid: int, column: str = "completion", end: bool = True) -> tuple[int, ...]:
        """Token ids of a given answer, with its end or without; empty when the row has none."""
        ...

    def recorded(self, uid: int) -> Sequence[Rollout]:
        """The rollouts of a prompt that were recorded. Raises UserError where none are."""
        ...

    def decoded(self, batch: Batch) -> tuple[list[Any], list[str]]:
        """Prompts (as given) and decoded answers, one of each per rollout."""
        ...

    def completion_ids(self, batch: Batch) -> list[list[int]]:
        """Token ids that the policy generated, per rollout."""
        ...


class Grading(Protocol):
    """What reward functions and the environment make of rollouts."""

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
        """What each of them counts in the outcome."""
        ...

    def grade(self, batch: Batch) -> Graded:
        """The scores of the batch's rollouts."""
        ...

    def grade_beside(self, batch: Batch, opponents: Sequence[str]) -> Graded:
        """The scores with another answer's text beside each."""
        ...

    def final_answers(self, texts: Sequence[str]) -> list[str | None]:
        """The final answer in each text, as the task reads it."""
        ...


class Sampling(Protocol):
    """How answers are drawn and end in this run, and drawing more of them.

    answer_tokens: most new tokens of an answer, of an action where episodes are played;
    episode_tokens: of an answer or an episode's actions together; context_tokens: of a sequence.
    wanted_statistics: what engines report of the tokens. failures: why requests of this step
    failed.
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
        """A request to `sample` at the rollouts' temperature, with their ends; fields to change."""
        ...

    def players(self, game: int) -> Callable[[int], Player]:
        """Who plays each role of a game. game: a number that no other game of the run has."""
        ...

    def sample(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers by the engine's weights of now, in the order of the requests."""
        ...

    @property
    def explores(self) -> bool:
        """Whether the run keeps an average of its policies to explore with."""
        ...

    def sample_explorer(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers by that average; they are rollouts' and not counted beside these."""
        ...

    def sample_newest(self, requests: Sequence[Request]) -> list[Answer]:
        """The same by the newest weights; they are rollouts' and not counted beside these."""
        ...


class Scoring(Protocol):
    """What the run's policies make of given tokens: "current", and "ref" or "critic" if any."""

    @property
    def policies(self) -> Container[str]:
        """The policies that the run has."""
        ...

    @property
    def context_tokens(self) -> int:
        """Most tokens of a sequence."""
        ...

    def score(self, batch: Batch, policy: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Columns of the batch under a policy."""
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
    """What is kept of each rollout beside its columns, for the table of rollouts."""

    @property
    def logged(self) -> Mapping[str, Mapping[int, Any]]:
        """What was logged in this step: column -> rollout -> value."""
        ...

    def log_rollouts(self, name: str, values: Mapping[int, Any]) -> None:
        """Keep a column, by rollout, until the next step."""
        ...


class Episodes(Protocol):
    """The task's environment, and how what it says and is told is written in tokens.

    are_played: whether the task has one.
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
        what tools answered, where there are answers. so_far: the sequence, where it is known, with
        the action's tokens as its last num_new.
        """
        ...

    @property
    def drops_thoughts(self) -> bool:
        """Whether a turn sees of earlier turns' thoughts what the chat template shows of them."""
        ...

    def rewritten_ids(
        self, shown: Sequence[Any], actions: Sequence[str], newest: int
    ) -> tuple[int, ...]:
        """Tokens of the conversation of these observations and actions, where the chat template
        leaves out what was thought in actions from `newest` on; empty where it shows all.
        """
        ...

    def context_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of a text that is a turn's whole context, however long."""
        ...

    def opening_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of the first text that a player sees who does not begin the episode."""
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

    rollout: its calls, where whoever played it recorded them too.
    """

    exit: Exit
    why: str = ""
    value: Any = None
    rollout: Rollout | None = None


class Withdrawn(NamedTuple):
    """The agent no longer waits for the answer to this call, and has not got it."""

    call_id: str


class AgentEpisode(Protocol):
    """One call of an agent's function, as it goes on."""

    async def next(self) -> ModelCall | Withdrawn | AgentEnd:
        """The next call of the model, one that is withdrawn, or how the agent has ended; it may
        have taken too long.
        """
        ...

    def reply(self, call: ModelCall, answers: list[ModelAnswer]) -> None:
        """Give a call its answers."""
        ...

    def refuse(self, call: ModelCall, why: Refused) -> None:
        """Give a call an error."""
        ...


class Agents(Protocol):
    """The task's agent. are_judged: whether reward functions score its rollouts too."""

    @property
    def are_judged(self) -> bool: ...

    def begin(self, uid: int) -> AbstractAsyncContextManager[AgentEpisode]:
        """An episode with the row of a prompt, which ends with the context."""
        ...


class ModelCalls(Protocol):
    """What clients ask of the model, as it comes."""

    async def event(self) -> Any:
        """The next call, a `ModelCall`, or one that is withdrawn."""
        ...

    def reply(self, call: ModelCall, answers: list[ModelAnswer]) -> None:
        """Give a call its answers."""
        ...

    def refuse(self, call: ModelCall, why: Exception) -> None:
        """Give a call an error."""
        ...


class Live(Protocol):
    """Rollouts that others post while the run trains, and their calls of the model.

    served: what the strategy keeps of calls from one step to the next.
    """

    served: Any

    @property
    def calls(self) -> ModelCalls: ...

    def listen(self, draws: Sequence[Any], version: Callable[[], int]) -> None:
        """From now on calls are answered, and rollouts are taken in for the step of now.

        draws: as many groups, of as many rollouts. version: of the weights that draw. Raises
        UserError for draws that ask for a certain prompt.
        """
        ...

    def take(self, num_groups: int, taken: int) -> Taken | None:
        """The next whole groups behind the first `taken`; None: there are too few as yet.

        Raises StepGivenUp where the run is to end.
        """
        ...

    def pause(self) -> None:
        """From now on clients are told to come back."""
        ...

    def rollouts(self, taken: Taken) -> list[tuple[int, int, list[Rollout]]]:
        """Of each group: the uid of its task, its own number, and its rollouts."""
        ...


class Stores(Protocol):
    """Columns of tokens that are kept over steps, on the disk where the run has a folder.

    A file stays as long as a part's state, of now or of a checkpoint that is kept, has its number
    in the column `FILE`.
    """

    def put(self, step: int, columns: Mapping[str, Tensor]) -> int:
        """Write a file; its number."""
        ...

    def get(self, number: int) -> Mapping[str, Tensor]:
        """The columns of a file. Raises UserError where it is not as it was written."""
        ...


class Services(Protocol):
    """All of them, under the names by which parts ask for them."""

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
