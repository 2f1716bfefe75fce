"""Posted rollouts: the order in which they are taken, what is refused, and files of them."""

import errno
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from strop.serving.drawn import Drawn
from strop.serving.intake import Intake
from strop.serving.protocol import Busy, ModelAnswer, ModelCall, Refused
from strop.serving.watched_folder import WatchedFolder
from strop.support.errors import UserError
from strop.traces.files import open_traces
from strop.traces.records import Rollout, TurnRecord


def row(group: str, version: int = 0, reward: float = 1.0, **more: Any) -> dict[str, Any]:
    turn = {"prompt_ids": [1, 2], "output_ids": [3, 4], "versions": [version + 1, version]}
    return {"group": group, "reward": reward, "turns": [turn], **more}


def intake(path: Path, staleness: int = 0, size: int = 2, wanted: int = 2, step: int = 1) -> Intake:
    made = Intake(lambda rollout, where: rollout, staleness)
    made.read(path)
    made.expect(step, wanted, size)
    return made


def taken(made: Intake, step: int, wanted: int = 2, before: int = 0) -> list[str]:
    found = made.take(step, wanted, before)
    assert found is not None
    return [group.key for group in found.groups]


def test_groups_are_taken_in_the_order_in_which_they_became_whole(tmp_path: Path) -> None:
    made = intake(tmp_path / "p.jsonl")
    made.add([row("a"), row("b")])
    made.add([row("b", reward=0.5)])
    assert made.take(1, 2, 0) is None
    told = made.add([row("c"), row("a"), row("c")])
    assert [each["group"] for each in told] == ["c", "a", "c"]
    first = made.take(1, 2, 0)
    assert first is not None
    assert [group.key for group in first.groups] == ["b", "a"]
    assert (first.taken, first.waiting, first.stale) == (2, 1, 0)
    assert [made.rollout(p).reward for p in first.groups[0].places] == [1.0, 0.5]
    # of a task that comes again there is another group, with the same uid
    made.expect(2, 1, 2)
    made.add([row("b", 1), row("b", 1)])
    again = made.take(2, 1, 2)
    assert again is not None
    assert (again.groups[0].uid, again.groups[0].number) == (1, 3)
    assert again.stale == 1  # c, which weights of version 0 have drawn


def test_a_file_gives_the_same_groups_again_and_what_is_half_written_is_cut_off(
    tmp_path: Path,
) -> None:
    path = tmp_path / "p.jsonl"
    made = intake(path, staleness=9, wanted=3)
    made.add([row("a", id="x"), row("b"), row("a"), row("c")])
    made.add([row("b"), row("d"), row("d")], whole=True)
    whole = [(g.key, g.number, g.uid, g.places) for g in made.whole]
    path.write_bytes(path.read_bytes() + b'{"posted": {"id": "y", "ke')
    again = intake(path, staleness=9, wanted=3)
    assert [(g.key, g.number, g.uid, g.places) for g in again.whole] == whole
    assert taken(again, 1) == ["a", "b"]
    assert taken(again, 1, before=1) == ["b", "d"]
    assert [*again.open] == ["c"]
    assert again.first_of(2).group == "c"
    told = again.add([row("a", id="x"), row("c")])
    assert [each["repeated"] for each in told] == [True, False]
    assert [g.key for g in again.whole] == ["a", "b", "d", "c"]
    assert len(path.read_text().splitlines()) == 8
    path.write_text('{"reward": 1}\n')
    with pytest.raises(UserError, match=r"p\.jsonl line 1 is none of a run's posted rollouts"):
        intake(path)


def test_a_resumed_run_reads_the_file_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a long run is larger than the memory."""
    path = tmp_path / "p.jsonl"
    before = intake(path)
    before.add([row("a"), row("a"), row("b")])
    for whole in ("read_bytes", "read_text"):
        monkeypatch.setattr(Path, whole, lambda *_, **__: pytest.fail("the file was read whole"))
    again = intake(path)
    assert (again.end, again.whole, again.open) == (before.end, before.whole, before.open)


def test_a_number_names_a_rollout_and_what_completes_nothing_is_refused(tmp_path: Path) -> None:
    made = intake(tmp_path / "p.jsonl", size=3)
    assert made.add([row("g", id=17)])[0] | {"repeated": False} == {
        "object": "rollout", "id": "17", "group": "g", "repeated": False,
    }  # fmt: skip
    assert made.add([row("g", id="17")])[0]["repeated"]
    for more in ([], [row("h")]):  # nor does what is new of another group
        with pytest.raises(Refused, match="nothing completes group g: send complete with its last"):
            made.add([row("g", id=17), *more], whole=True)
    made.add([row("g", id=18)], whole=True)
    assert made.add([row("g", id=18)], whole=True)[0]["repeated"]  # it is complete
    for wrong in (1.5, True, ["a"]):
        with pytest.raises(Refused, match=r"rollouts\[0\]\.id is .*: name a rollout by text or a"):
            made.add([row("g", id=wrong)])


def test_a_file_of_a_watched_folder_waits_for_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.serving.watched_folder.LOOK_SECONDS", 99)
    made, folder = intake(tmp_path / "p.jsonl"), tmp_path / "queue"
    watched = WatchedFolder(folder, made)
    watched.start()
    watched.close()
    (folder / "one.jsonl").write_text(json.dumps(row("a")))

    def full(lines: object) -> None:
        raise Refused(507, "the run cannot write posted.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(made, "_write", full)
        with pytest.raises(OSError, match="cannot write posted"):
            watched.look()
    assert not (folder / "refused" / "one.jsonl").exists()


def test_a_name_holds_for_all_of_a_post_and_for_events(tmp_path: Path) -> None:
    made = intake(tmp_path / "p.jsonl", wanted=9)
    assert not any(each["repeated"] for each in made.add([row("a"), row("b")], "n"))
    assert all(each["repeated"] for each in made.add([row("a"), row("b")], "n"))
    response = {"prompt_token_ids": [1], "choices": [{"token_ids": [2]}]}
    data = {"request": {}, "response": response, "model_version": 0}
    events = [
        {"rollout_id": "r", "attempt_id": "1", "event_type": "model_request", "data": data},
        {"rollout_id": "r", "attempt_id": "1", "event_type": "reward", "data": {"value": 0.25}},
    ]
    (told,) = made.add(events)
    assert told["id"] == "r/1"
    twice = made.add([row("c", id="x"), row("c", id="x"), row("c"), row("c")])
    assert [each["repeated"] for each in twice] == [False, True, False, False]
    assert made.open["c"].arrived == 1  # the group of the first two rollouts is whole
    assert made.rollout(made.open[told["group"]].places[0]).reward == 0.25


@pytest.mark.parametrize(
    "silent",
    [
        {"group": "g", "turns": []},
        {"nodes": [], "task": {"key": "g"}},
        {"agent_result": None, "task_name": "g", "exception_info": {"exception_type": "E"}},
        {"event_type": "reward", "rollout_id": "r", "data": {"value": 0.0}, "group": "g"},
    ],
)
def test_a_rollout_without_a_call_counts_in_the_group_that_its_format_names(
    tmp_path: Path, silent: dict[str, Any]
) -> None:
    made = intake(tmp_path / "p.jsonl")
    (_, receipt) = made.add([row("g"), silent])
    assert receipt["group"] == "g"
    assert [len(group.places) for group in made.whole] == [1]
    again = open_traces(str(tmp_path / "p.jsonl"))
    assert ([len(group.places) for group in again.groups], again.num_silent) == ([1], 1)


def test_what_is_too_old_too_many_or_unreadable_is_refused_by_name(tmp_path: Path) -> None:
    made = Intake(lambda rollout, where: rollout, 1)
    made.read(tmp_path / "p.jsonl")
    with pytest.raises(Busy, match="not begun its first step"):
        made.add([row("a")])
    made.expect(5, 1, 1)
    with pytest.raises(Refused, match="version 2, and step 5 takes none older than version 3") as e:
        made.add([row("a", 3), row("b", 2)])
    assert (e.value.status, e.value.code) == (409, "stale_rollout")
    for wrong, said in (
        ([row("a", 4), {"turns": []}], r"rollouts\[1\]: has no turns: the model was not called"),
        ([7], r"rollouts\[0\] is no object"),
        ([{"group": "a"}], r"rollouts\[0\] is a rollout of no known format: it has group"),
        ([row("a", 4, reward="much")], r"rollouts\[0\]: reward is 'much'"),
        ([{"nodes": [], "task": {}}], r"the model was not called, and it names no group"),
    ):
        with pytest.raises(Refused, match=said) as error:
            made.add(wrong)
        assert (error.value.status, error.value.code) == (422, "unreadable_rollout")
    assert not (tmp_path / "p.jsonl").exists()  # all of a post, or none of it
    made.add([row("a", 4), {"nodes": [], "task": {}, "group": "silent"}])
    made.add([row("b", 4)])
    with pytest.raises(Busy, match="enough groups wait"):
        made.add([row("c", 4)])
    found = made.take(5, 2, 0)
    assert found is not None
    assert ([g.key for g in found.groups], found.stale) == (["a", "b"], 1)
    assert made.status()["step"] == 6


def test_groups_that_never_become_whole_are_given_up_once_they_are_too_old(tmp_path: Path) -> None:
    made = intake(tmp_path / "p.jsonl", wanted=1)
    made.add([row("a")])
    made.expect(2, 1, 2)
    made.add([row("a", 1)])
    assert made.take(2, 1, 0) is None
    made.add([row("a", 1)])
    again = intake(tmp_path / "p.jsonl", wanted=1, step=2)
    for each in (made, again):
        found = each.take(2, 1, 0)
        assert found is not None
        assert [len(group.places) for group in found.groups] == [2]


def test_a_full_disk_takes_nothing_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = intake(tmp_path / "p.jsonl")
    made.add([row("a", id="x")])

    def full(number: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Refused, match=r"cannot write p\.jsonl: no space") as error:
        made.add([row("a", id="y")])
    assert error.value.status == 507
    monkeypatch.undo()
    assert made.ids == {"x"}
    made.add([row("a", id="y")])
    assert [group.key for group in made.whole] == ["a"]
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 2


def test_a_file_that_cannot_be_made_takes_nothing_in(tmp_path: Path) -> None:
    made = intake(tmp_path / "run" / "p.jsonl")
    with pytest.raises(Refused, match=r"cannot write p\.jsonl") as error:
        made.add([row("a", id="x")])
    assert (error.value.status, made.ids, [*made.open]) == (507, set(), [])
    (tmp_path / "run").mkdir()
    made.add([row("a", id="x")])
    assert made.ids == {"x"}


def test_a_full_disk_changes_nothing_about_groups_that_are_taken_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = intake(tmp_path / "p.jsonl", wanted=1)
    made.add([row("a"), row("a"), row("b")])
    assert taken(made, 1, wanted=1) == ["a"]
    made.expect(2, 1, 2)  # gives up b, half of which is of old weights

    def full(number: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Refused):
        made.add([row("c", 1)])
    monkeypatch.undo()
    assert (made.taken, [*made.open]) == (1, [])
    made.add([row("b", 1), row("b", 1)])
    assert taken(made, 2, wanted=1, before=1) == ["b"]


def test_a_record_gets_what_was_drawn() -> None:
    drawn = Drawn(most=4)
    call = ModelCall("generate", (1, 2))
    drawn.remember(call, [ModelAnswer((3, 4), (-0.5, -1.0), (7, 8), (0.1, 0.2), (-0.6, -1.1))])
    whole = drawn.complete(TurnRecord((1, 2), (3, 4), (-0.25, -1.0)))
    assert (whole.versions, whole.output_log_probs) == ((7, 8), (-0.25, -1.0))
    assert (whole.entropies, whole.model_log_probs) == ((0.1, 0.2), (-0.6, -1.1))
    assert drawn.complete(TurnRecord((1,), (3, 4))).versions == ()
    drawn.remember(call, [ModelAnswer((5, 6, 7), versions=(9, 9, 9))])
    assert drawn.complete(TurnRecord((1, 2), (3, 4))).versions == ()  # forgotten
    assert drawn.complete(TurnRecord((1, 2), (5, 6, 7))).versions == (9, 9, 9)


def test_files_of_a_watched_folder_are_taken_once(tmp_path: Path) -> None:
    made, folder = intake(tmp_path / "p.jsonl"), tmp_path / "queue"
    watched = WatchedFolder(folder, made)
    watched.start()
    watched.close()  # its thread; what follows is what it does
    one = folder / "one.jsonl"
    for name, rows in (("one", [row("a"), row("b")]), ("two", [row("a"), {"turns": 3}])):
        text = "".join(json.dumps(each) + "\n" for each in rows)
        (folder / f"{name}.jsonl").write_text(text)
    watched.look()
    assert sorted(p.name for p in (folder / "taken").iterdir()) == ["one.jsonl"]
    why = (folder / "refused" / "two.jsonl.why").read_text()
    assert why.startswith("rollouts[1] is a rollout of no known format")
    (folder / "taken" / "one.jsonl").rename(one)  # as if it had been killed before it moved it
    watched.look()
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 2
    one.write_text(json.dumps(row("c")))
    watched.look()
    assert "was taken in before" in (folder / "refused" / "one.jsonl.why").read_text()


def test_a_watched_folder_is_looked_at_again_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    module = "strop.serving.watched_folder"
    monkeypatch.setattr(f"{module}.LOOK_SECONDS", 0.01)
    monkeypatch.setattr(f"{module}.print", lambda text, **_: printed.append(text), raising=False)
    made, folder = intake(tmp_path / "p.jsonl"), tmp_path / "queue"
    watched = WatchedFolder(folder, made)
    watched.start()
    folder.rename(tmp_path / "away")
    last = time.monotonic() + 10
    while not printed and time.monotonic() < last:
        time.sleep(0.01)
    (text,) = printed  # once, however often it has looked
    assert text.startswith(f"nothing is taken from {folder}: ")
    (tmp_path / "away").rename(folder)
    (folder / ".one").write_text(json.dumps(row("a")))
    (folder / ".one").rename(folder / "one.jsonl")
    while not (folder / "taken" / "one.jsonl").exists() and time.monotonic() < last:
        time.sleep(0.01)
    watched.close()
    assert [*made.open] == ["a"]


def test_a_packed_file_that_cannot_be_read_for_a_moment_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = intake(tmp_path / "p.jsonl"), tmp_path / "queue"
    watched = WatchedFolder(folder, made)
    watched.start()
    watched.close()
    (folder / "one.jsonl.gz").write_bytes(gzip.compress(json.dumps(row("a")).encode()))

    def failing(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing)
        with pytest.raises(OSError, match="Input/output error"):
            watched.look()
    watched.look()
    assert [path.name for path in (folder / "taken").iterdir()] == ["one.jsonl.gz"]
    (folder / "two.jsonl.gz").write_bytes(b"no")
    watched.look()
    assert "cannot be unpacked" in (folder / "refused" / "two.jsonl.gz.why").read_text()


def test_what_waits_for_a_resumed_run_is_read_once_its_versions_are_known(tmp_path: Path) -> None:
    """Until its first step a run would say of every version but 0 that it has none such."""

    def complete(rollout: Rollout, where: str) -> Rollout:
        raise Refused(409, f"{where} is of unknown weights")

    made, folder = Intake(complete), tmp_path / "queue"
    made.read(tmp_path / "p.jsonl")
    watched = WatchedFolder(folder, made)
    watched.start()
    watched.close()
    (folder / "one.jsonl").write_text(json.dumps(row("a", 4)))
    watched.look()
    assert [each.name for each in folder.iterdir() if each.is_file()] == ["one.jsonl"]
    made.complete = lambda rollout, where: rollout
    made.expect(5, 1, 1)
    watched.look()
    assert (folder / "taken" / "one.jsonl").exists()


def test_what_earlier_steps_have_taken_leaves_a_resumed_run_its_room(tmp_path: Path) -> None:
    """A step that asked for further groups has taken as many as may wait for the next steps."""
    made = intake(tmp_path / "p.jsonl", staleness=1, size=1)
    for before, names in enumerate(("ab", "cd")):
        made.add([row(name) for name in names])
        assert taken(made, 1, before=2 * before) == [*names]
        made.expect(1, 2, 1)
    resumed = intake(tmp_path / "p.jsonl", staleness=1, size=1, step=2)
    assert resumed.take(2, 2, 4) is None
    resumed.add([row("e", 1), row("f", 1)])
    assert taken(resumed, 2, before=4) == ["e", "f"]


def test_columns_are_those_of_the_first_rollout_of_a_task(tmp_path: Path) -> None:
    made = intake(tmp_path / "p.jsonl", size=1, wanted=9)
    made.add([row("a", columns={"n": 1})])
    made.add([row("a", columns={"n": 1}), row("b", columns={"n": 2})])
    for rows in ([row("a", columns={"n": 2})], [row("c"), row("c", columns={"n": 2})]):
        with pytest.raises(Refused, match="other columns than the first rollout of group"):
            made.add(rows)
    assert len(made.whole) == 3


WRONG_TURNS: list[dict[str, Any]] = [
    {"output_ids": ["a"]}, {"versions": ["a"]}, {"versions": [1.5]}, {"versions": [None]},
    {"versions": 7}, {"versions": [-2]}, {"output_log_probs": ["x"]}, {"output_mask": 3},
    {"prompt_ids": {}}, {"prompt_ids": "abc"}, {"prompt_ids": [2**70]}, {"ended": 5},
    {"reward": "x"}, {"reward": float("inf")}, {"valid": "x"}, {"entropies": [float("nan")]},
]  # fmt: skip
WRONG_ROWS: list[Any] = [
    None, [], "x", {"turns": {"a": 1}}, {"nodes": [1], "task": {}}, {"events": [{}]},
    {"nodes": [{"sampled": True}], "task": {}}, {"event_type": 1, "rollout_id": {}},
    {**row("g"), "columns": "x"}, {**row("g"), "columns": [1]}, {**row("g"), "exit": 3},
    {**row("g"), "exit": "nope"}, {**row("g"), "why": 5}, {**row("g"), "rewards": 3},
    {**row("g"), "rewards": {"a": "b"}}, {**row("g"), "rewards": {"a": float("nan")}},
    {**row("g"), "reward": float("inf")},
]  # fmt: skip


def test_whatever_else_is_posted_is_refused(tmp_path: Path) -> None:
    made = intake(tmp_path / "p.jsonl", staleness=9)
    turn = {"prompt_ids": [1], "output_ids": [2], "versions": [0]}
    rows = [{"group": "g", "reward": 1, "turns": [{**turn, **each}]} for each in WRONG_TURNS]
    for each in (*rows, *WRONG_ROWS):
        with pytest.raises(Refused) as error:
            made.add([each])
        assert error.value.status == 422, each
    assert not made.whole
