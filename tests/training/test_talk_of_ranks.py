"""Communication between the processes of a run: sums, errors, and shares of the work."""

import pickle
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strop.support import stopping
from strop.support.errors import RunStopped, UserError
from strop.training import loop
from strop.training.parallel import ranks, shards
from strop.training.parallel.ranks import Several
from strop.training.record import ending


class Heard(Several):
    """Process 0 of two, the other of which holds what it is told."""

    def __init__(self, other: Any) -> None:
        super().__init__(0, 2, 0, None)
        self.other = other

    def gathered(self, value: Any) -> list[Any]:
        theirs = Heard.sums(self.other)
        return [value, theirs]

    @staticmethod
    def sums(columns: dict[str, torch.Tensor]) -> dict[str, Any]:
        seen: list[Any] = []
        spy = Several(0, 2, 0, None)
        spy.gathered = lambda value: seen.append(value) or [value]  # type: ignore[method-assign]
        spy.agree(columns, 1)
        return seen[0]


def test_columns_that_differ_stop_the_run():
    columns = {"reward_B": torch.tensor([0.0, 1.0]), "id_T": torch.tensor([3, 4])}
    Heard(columns).agree(columns, 7)
    swapped = {**columns, "id_T": torch.tensor([4, 3])}
    with pytest.raises(RunStopped, match="step 7: the column id_T of process 1"):
        Heard(swapped).agree(columns, 7)
    with pytest.raises(RunStopped, match="the column reward_B"):
        Heard({**columns, "reward_B": torch.tensor([1.0, 0.0])}).agree(columns, 7)
    with pytest.raises(RunStopped, match="the column more_T"):
        Heard({**columns, "more_T": torch.zeros(1)}).agree(columns, 7)


def test_a_mistake_that_one_process_finds_has_its_name(monkeypatch):
    monkeypatch.setattr(ranks, "deafen", lambda: None)
    monkeypatch.setattr(Several, "_reports", lambda self: True)
    for error in (UserError, RunStopped):
        with (
            pytest.raises(error, match="process 1 of 2: no room"),
            Several(1, 2, 0, None).speaking(),
        ):
            raise error("no room")


def test_more_processes_than_gpus_are_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(UserError, match="process 5 is the 4th on its machine, which has 3 GPUs"):
        ranks.join()


def test_a_weight_is_cut_along_its_second_axis_where_only_that_gives_all_the_same(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    shapes = [(3, 8), (4, 8), (3, 6), (3,)]
    found = [shards._largest_even(torch.nn.Parameter(torch.zeros(shape))) for shape in shapes]
    assert [each and each.dim for each in found] == [1, None, None, None]


def test_only_a_large_model_is_cut_layer_by_layer(monkeypatch):
    from torch.distributed.fsdp import FSDPModule

    class Layer(torch.nn.Linear):
        pass

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for most, expected in ((24, 1), (23, 3)):  # two layers of 2 weights and a bias: 24 bytes
            monkeypatch.setattr(shards, "WHOLE_BYTES", most)
            model: Any = torch.nn.Sequential(Layer(2, 1), Layer(2, 1))
            model._no_split_modules = ["Layer"]
            cut = shards.shard(model).modules()
            assert sum(isinstance(module, FSDPModule) for module in cut) == expected
    finally:
        torch.distributed.destroy_process_group()


def test_a_signal_that_arrives_while_the_processes_ask_each_other_is_kept():
    run = SimpleNamespace(stop_asked=False)

    def some(flag: bool) -> bool:
        run.stop_asked = True  # as a signal's handler does
        return flag

    run.ranks = SimpleNamespace(some=some)
    assert not loop.Run.stopping(run)  # what all others have answered, too
    assert loop.Run.stopping(run)


class Unreadable(Exception):
    """What cannot be handed to another process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.of = lambda: text


def test_what_fails_in_the_first_process_is_raised_in_all(monkeypatch):
    sent: list[bytes] = []
    monkeypatch.setattr(
        torch.distributed, "broadcast_object_list",
        lambda said, src, group: sent.append(pickle.dumps(said)),
    )  # fmt: skip

    def fail() -> None:
        raise Unreadable("the disk is gone")

    with pytest.raises(Unreadable, match="the disk is gone"):
        Several(0, 2, 0, None).from_first(fail)

    def hear(said: list[Any], src: int, group: Any) -> None:
        said[:] = pickle.loads(sent[0])

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", hear)
    with pytest.raises(RuntimeError, match=r"in fail\n[^@]*Unreadable: the disk is gone"):
        Several(1, 2, 0, None).from_first(fail)


def test_a_failure_is_said_although_who_counts_them_is_gone(monkeypatch):
    class Gone:
        def add(self, name: str, number: int) -> int:
            raise torch.distributed.DistNetworkError("Connection reset by peer")

    place = torch.distributed.distributed_c10d
    monkeypatch.setattr(place, "_get_default_store", Gone)
    monkeypatch.setattr(ranks, "deafen", lambda: None)  # later tests stop processes by SIGTERM
    with pytest.raises(RunStopped, match="process 1 of 2 has lost another one"):  # noqa: SIM117
        with Several(1, 2, 0, None).speaking():
            raise RuntimeError("Connection closed by peer")


def lose(interrupted: bool) -> None:
    """What happens in a process whose neighbour is killed."""
    try:
        raise RuntimeError("Connection closed by peer")
    finally:
        if interrupted:
            raise KeyboardInterrupt


def test_the_loss_of_a_process_is_said_with_the_command_that_goes_on(monkeypatch, tmp_path):
    """Also where torchrun's SIGTERM comes while the loss is being dealt with."""
    (tmp_path / "config.toml").touch()
    deaf: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda number, do: deaf.append(number))
    for reports, interrupted in ((True, False), (True, True), (False, True)):
        ranks = Several(1, 2, 0, None)
        monkeypatch.setattr(ranks, "_reports", lambda reports=reports: reports)
        ranks.signs.limit, ranks.signs.folder = 1.0, tmp_path
        kind = RunStopped if reports else SystemExit
        with pytest.raises(kind) as found, ranks.speaking():
            lose(interrupted)
        if reports:
            assert "process 1 of 2 has lost another one" in str(found.value)
            assert str(found.value).endswith(f". Resume with: strop train --resume {tmp_path}")
    assert set(deaf) == {signal.SIGTERM, signal.SIGHUP}
    for number, kind in ((0, KeyboardInterrupt), (1, SystemExit)):  # what the first says is enough
        with pytest.raises(kind) as found, Several(number, 2, 0, None).speaking():
            raise KeyboardInterrupt
    assert found.value.code == stopping.INTERRUPTED


def test_the_loss_of_a_process_is_recorded_in_the_words_of_the_terminal(tmp_path):
    for interrupted in (False, True):
        with (
            pytest.raises((RuntimeError, KeyboardInterrupt)),
            ending.recording(
                tmp_path, lambda: ending.Ending(3, False), True, Several(0, 2, 0, None).loss
            ),
        ):
            lose(interrupted)
        said = "process 0 of 2 has lost another one, which was killed or failed"
        assert ending.read(tmp_path).why == said


def test_who_is_about_to_end_is_not_ended_by_a_signal():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with stopping.interrupting():
            stopping.deafen()
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)


def test_pieces_are_dealt_out_by_size_and_all_take_as_many_turns():
    costs = [5, 1, 1, 1, 4, 2]
    dealt = [Several(number, 3, 0, None).deal(costs) for number in range(3)]
    assert {len(turns) for turns in dealt} == {max(map(len, dealt))}
    pieces = [piece for turns in dealt for piece in turns if piece is not None]
    assert sorted(pieces) == list(range(6))
    loads = [sum(costs[piece] for piece in turns if piece is not None) for turns in dealt]
    assert sorted(loads) == [4, 5, 5]
    assert Several(1, 2, 0, None).deal([7]) == [None]
    assert Several(1, 2, 0, None).deal([]) == []
