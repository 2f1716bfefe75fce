"""Receives rollouts that others post to a run while it trains, and serves the model to them.

    RUN/serving.json     the address, the key and the model's name, for this user alone
    RUN/.serving.json    the same for an address that another process of the run will open
    RUN/posted.jsonl     the rollouts, in the order in which they came

The server listens from the start of the run to its end; it samples while a step waits for rollouts.
"""

import asyncio
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from strop.data.prompts import Prompt
from strop.environments.tasks import LiveSource
from strop.method.part import Draw
from strop.method.services import ModelAnswer, ModelCall, Rollout, Taken
from strop.serving.drawn import Drawn
from strop.serving.intake import LONGEST_WAIT, Intake
from strop.serving.protocol import Busy, Refused
from strop.serving.reading import POLICY
from strop.serving.server import PolicyServer
from strop.serving.watched_folder import WatchedFolder
from strop.support.errors import StepGivenUp, UserError
from strop.support.writing import write_whole
from strop.training.services.model_calls import CallQueue
from strop.training.services.texts import RunTexts

ADDRESS, PLANNED, POSTED = "serving.json", ".serving.json", "posted.jsonl"
HELD_SECONDS = 10.0  # a call's wait for the next step before its client is told to retry
LOOK_SECONDS = 0.05
FIRST_UID = 1  # of a posted task; 0 is the uid of the only prompt that the samplers know


class Address(NamedTuple):
    """Where a run answers calls and receives rollouts; OpenAI's clients use `url` with `/v1`."""

    url: str
    key: str
    model: str = POLICY

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def address_in(folder: Path) -> Address:
    """The address of the run in a folder. Raises UserError where it has none."""
    path = folder / ADDRESS
    if not path.exists() and (folder / PLANNED).exists():
        path = folder / PLANNED
    try:
        return Address(**json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} has no {ADDRESS}: only runs with data.task=traces:live, or traces:queue:"
            "FOLDER, have an address, from their start on"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: remove it, and resume the run") from error


@dataclass
class RunLive:
    """Receives posted rollouts, if the task has them; `services.Live` of a run."""

    source: LiveSource | None
    texts: RunTexts
    step: Callable[[], int]
    max_staleness: int = 0
    served: Any = None
    stopping: Callable[[], bool] = lambda: False  # whether the run is to end

    def __post_init__(self) -> None:
        self.calls, self.drawn = CallQueue(), Drawn()
        self.intake = Intake(self.complete, self.max_staleness)
        self.server: PolicyServer | None = None
        self.watched: WatchedFolder | None = None
        self.elsewhere: Path | None = None  # the rollouts that another process receives
        self.listens = False
        self.version: Callable[[], int] = lambda: 0
        self.paused_at, self.listened_at = time.monotonic(), 0.0
        self.pause_seconds = 1.0  # how long clients had to wait the last time

    # ---- start and end

    def prepare(self, folder: Path) -> Address:
        """Choose the address that another process will open, and write it to the folder."""
        assert self.source is not None
        url, key, _ = self._address(folder)
        self.elsewhere = folder / POSTED
        if url.endswith(":0"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                url = f"{url[:-1]}{free.getsockname()[1]}"
        found = self._announced(folder / PLANNED, Address(url, key))
        (folder / ADDRESS).unlink(missing_ok=True)  # last: a resumed run needs one of the two
        return found

    def open(self, folder: Path) -> Address:
        """Receive rollouts from now on. Raises UserError."""
        assert self.source is not None
        self.intake.max_staleness = self.max_staleness
        self.intake.read(folder / POSTED)
        before = self._address(folder)
        texts = self.texts
        self.server = PolicyServer(
            texts.tokenizer, texts.chat, self, model=POLICY, host=self.source.host,
            port=before.port, key=before.key, max_model_len=texts.limits.context_tokens,
            checks_room=False, intake=self.intake,
        )  # fmt: skip
        try:
            self.server.start()
        except UserError:
            if self.source.port or not before.port:
                raise
            self.server.port = 0  # the earlier port is in use by somebody else now
            self.server.start()
        if self.source.folder:
            watched = WatchedFolder(Path(self.source.folder), self.intake)
            watched.start()
            self.watched = watched
        found = self._announced(folder / ADDRESS, Address(self.server.url, self.server.key))
        (folder / PLANNED).unlink(missing_ok=True)
        return found

    def _address(self, folder: Path) -> Address:
        """The run's earlier address, or a new one; port 0 means that one is still to be found."""
        assert self.source is not None
        if not any((folder / each).exists() for each in (ADDRESS, PLANNED)):
            key = os.environ.get("STROP_API_KEY") or secrets.token_urlsafe(24)
            return Address(f"http://{self.source.host}:{self.source.port}", key)
        before = address_in(folder)
        return Address(f"http://{self.source.host}:{self.source.port or before.port}", before.key)

    def _announced(self, path: Path, address: Address) -> Address:
        write_whole(path, json.dumps(address._asdict()) + "\n", 0o600)
        return address

    def close(self) -> None:
        """Stop receiving rollouts and answering calls."""
        self.calls.close()
        if self.watched is not None:
            self.watched.close()
            self.watched = None
        if self.server is not None:
            self.server.close()
            self.server = None

    # ---- for clients: in the server's thread

    async def say(self, call: ModelCall) -> list[ModelAnswer]:
        """The answers to a call. Between two steps the call waits a while, then Busy is raised.

        It also waits where enough groups have come, because its answer could not be used.
        """
        last = time.monotonic() + HELD_SECONDS
        while not self.listens or self.intake.is_full():
            if time.monotonic() > last:
                raise Busy(min(self.pause_seconds, LONGEST_WAIT))
            await asyncio.sleep(LOOK_SECONDS)
        answers = await self.calls.say(call)
        self.drawn.remember(call, answers)
        # The run samples in its own way whatever the call requests, and reports those draws alone.
        return [replace(each, model_log_probs=()) for each in answers]

    def complete(self, rollout: Rollout, where: str) -> Rollout:
        """A rollout completed with this run's records of its tokens. Raises Refused for tokens
        that this run cannot have drawn, and for a rollout that is too long.
        """
        turns = tuple(map(self.drawn.complete, rollout.turns))
        most, known = self.texts.limits.context_tokens, self.texts.num_tokens
        for number, turn in enumerate(turns, 1):
            named = f"{where} turn {number}"
            if not turn.versions:
                raise Refused(
                    422,
                    f"{named} does not say which weights drew its tokens, and this run has no "
                    "record of drawing them: sample from this address, or give `versions`",
                    "unknown_version",
                    where,
                )
            if wrong := [each for each in turn.versions if not 0 <= each <= self.version()]:
                raise Refused(
                    409,
                    f"{named} has tokens of version {wrong[0]}, and the weights are at version "
                    f"{self.version()}: this run has not drawn it",
                    "unknown_version",
                    where,
                )
            if turn.size > most:
                text = f"{named} reads and says {turn.size} tokens, and the context is {most}"
                raise Refused(422, text, "context_length_exceeded", where)
            if (highest := max(*turn.prompt_ids, *turn.output_ids)) >= known:
                text = f"{named} has the token {highest}, and the model knows {known}"
                raise Refused(422, text, "unknown_token", where)
        return replace(rollout, turns=turns, place="")

    # ---- for the strategy

    def listen(self, draws: Sequence[Draw], version: Callable[[], int]) -> None:
        """Answer calls from now on, and receive rollouts for the current step.

        Raises UserError for draws that need a certain prompt.
        """
        if any(draw.uid for draw in draws):
            raise UserError(
                "a part requests more rollouts of a group, but posted rollouts come as others send "
                "them: leave that part out, or let it request whole new groups"
            )
        now = time.monotonic()
        if self.listened_at:
            self.pause_seconds = now - self.paused_at
            self.intake.seconds = now - self.listened_at
        self.listened_at = now
        self.version = version
        self.intake.expect(self.step(), len(draws), draws[0].num_rollouts)
        self.listens = True

    def take(self, num_groups: int, taken: int) -> Taken | None:
        """The next whole groups after the first `taken`; None: there are too few so far."""
        found = self.intake.take(self.step(), num_groups, taken)
        if found is None and self.stopping():
            raise StepGivenUp
        return found

    def pause(self) -> None:
        """Tell clients to retry later, from now on."""
        self.listens, self.paused_at = False, time.monotonic()

    def rollouts(self, taken: Taken) -> list[tuple[int, int, list[Rollout]]]:
        """For each group the uid of its task, its own number, and its rollouts."""
        return [
            (FIRST_UID + each.uid, each.number,
             [self.texts.judged(self.intake.rollout(place)) for place in each.places])
            for each in taken.groups
        ]  # fmt: skip

    def prompt(self, uid: int) -> Prompt:
        """The prompt of a posted task, and its columns. Raises KeyError where there is none."""
        try:
            first = self.intake.first_of(uid - FIRST_UID)
        except KeyError:
            if self.server is not None or self.elsewhere is None:
                raise
            self.intake.read(self.elsewhere, writes=False)  # as far as it has been written
            first = self.intake.first_of(uid - FIRST_UID)
        ids = first.turns[0].prompt_ids
        text = str(self.texts.tokenizer.decode(list(ids)))
        return Prompt(uid, text, dict(first.columns), f"group {first.group or uid}", ids=ids)
