"""Rollouts that outlive their step are stored in the run's own files, whose size is bounded."""

import dataclasses
import shutil

import pytest
import torch
from builders import run
from models import without_times
from ragged import ragged_batch

from strop.parts.curation._store import columns_of, fetched, joined, opened, put_away
from strop.parts.curation.replay_rollouts import ReplayRollouts
from strop.support.errors import UserError
from strop.training import loop
from strop.training.record import checkpoint
from strop.training.services.stores import RunStores, files_in

OWNER = {"run": 1, "tokenizer": 2}


def opened_in(folder, owner=OWNER):
    stores = RunStores()
    stores.open(folder, owner)
    return stores


def rows_of(step, num=5):
    batch = ragged_batch(step, group_sizes=(num,))
    return batch.set(step=torch.tensor(step), rollout_uid_B=100 * step + torch.arange(num))


def test_a_file_comes_back_as_it_was(tmp_path):
    table = {"id_T": torch.tensor([3, 4]), "logp_T": torch.tensor([-0.5, float("nan")])}
    table["mask_T"] = torch.tensor([True, False])
    number = opened_in(tmp_path / "stores").put(12, table)
    (file,) = (tmp_path / "stores").glob("*.pt")
    assert file.name == f"000012-{number & 0xFFFFFFFF:08x}.pt"
    found = opened_in(tmp_path / "stores").get(number)
    assert found.keys() == table.keys()
    for name, column in table.items():
        assert found[name].dtype == column.dtype
        torch.testing.assert_close(found[name], column, equal_nan=True)


def test_equal_numbers_have_one_file_and_others_another(tmp_path):
    stores = opened_in(tmp_path / "stores")
    one = stores.put(1, {"id_T": torch.tensor([1, 2])})
    assert stores.put(1, {"id_T": torch.tensor([1, 2])}) == one
    kinds = [{"id_T": torch.tensor([2, 1])}, {"mask_T": torch.tensor([1, 2])},
             {"id_T": torch.tensor([1, 2], dtype=torch.int32)}]  # fmt: skip
    assert len({one, *(stores.put(1, table) for table in kinds)}) == 4


@pytest.mark.parametrize("change", ["lacks", "is damaged", "has changed"])
def test_a_file_that_is_not_as_it_was_written_is_named(change, tmp_path):
    stores = opened_in(tmp_path / "stores")
    number = stores.put(3, {"id_T": torch.arange(50)})
    (file,) = (tmp_path / "stores").glob("*.pt")
    if change == "lacks":
        file.unlink()
    elif change == "is damaged":
        file.write_bytes(file.read_bytes()[:200])
    else:
        torch.save({"id_T": torch.arange(50) + 1}, file)
    with pytest.raises(UserError, match=f"store.* {change}.*|{change}.*store") as refused:
        opened_in(tmp_path / "stores").check([number])
    assert "\n" not in str(refused.value)
    assert file.name in str(refused.value)


def test_the_store_of_another_run_or_tokenizer_is_refused(tmp_path):
    opened_in(tmp_path / "stores").put(1, {"id_T": torch.tensor([1])})
    opened_in(tmp_path / "stores")
    with pytest.raises(UserError, match="is the store of another run: put back"):
        opened_in(tmp_path / "stores", {**OWNER, "run": 5})
    with pytest.raises(UserError, match="is the store of a run with another tokenizer"):
        opened_in(tmp_path / "stores", {**OWNER, "tokenizer": 5})
    (tmp_path / "stores/about.json").write_text("[]")
    with pytest.raises(UserError, match=r"about\.json cannot be read"):
        opened_in(tmp_path / "stores")


def test_a_folder_whose_owner_was_not_written_is_used_while_it_holds_nothing(tmp_path):
    folder = tmp_path / "stores"
    folder.mkdir()
    opened_in(folder).put(1, {"id_T": torch.tensor([1])})
    (folder / "about.json").unlink()
    with pytest.raises(UserError, match=r"about\.json cannot be read"):
        opened_in(folder)


def test_only_so_much_stays_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("strop.training.services.stores.IN_MEMORY", 1000)
    stores = opened_in(tmp_path / "stores")
    numbers = [stores.put(step, {"id_T": torch.full((50,), step)}) for step in range(6)]
    assert list(stores._near) == numbers[-2:]  # 400 bytes each
    for step, number in enumerate(numbers):
        assert stores.get(number)["id_T"].tolist() == [step] * 50
        assert len(stores._near) == 2


def test_rollouts_come_back_token_for_token(tmp_path):
    stores = opened_in(tmp_path / "stores")
    whole = [rows_of(step) for step in (1, 2)]
    store = joined(put_away(whole[0], 1, stores).columns, put_away(whole[1], 2, stores))
    assert not store["turn_T"].numel()  # no token stays with the state
    back = fetched(store.take(torch.tensor([7, 1, 1])), stores)
    expected = [whole[1].take(torch.tensor([2])), *[whole[0].take(torch.tensor([1]))] * 2]
    for row, own in enumerate(expected):
        here_T = back["rollout_T"] == row
        for name in ("id_T", "mask_T", "logp_T", "logp_sampler_T"):
            torch.testing.assert_close(back[name][here_T], own[name], equal_nan=True)
        turn_T = back["turn_T"][here_T]
        assert (turn_T - turn_T[0]).equal(own["turn_T"])


def test_files_hold_at_most_twice_what_is_stored(tmp_path):
    stores, columns = opened_in(tmp_path / "stores"), {}
    said = {}
    for step in range(1, 16):
        new = rows_of(step)
        said |= {int(u): new.take(torch.tensor([n]))["id_T"].tolist()
                 for n, u in enumerate(new["rollout_uid_B"])}  # fmt: skip
        store = joined(columns, put_away(new, step, stores))
        stay_B = (store["rollout_uid_B"] % 100 == 0) | (store["made_at_B"] == step)
        columns = columns_of(store.keep(stay_B), step, stores)  # the first of each step stays
        stores.sweep(files_in({"curation.replay": {"columns": columns}}), step)
        light = opened(columns, new)
        back = fetched(light, stores)
        for row, uid in enumerate(light["rollout_uid_B"].tolist()):
            assert back["id_T"][back["rollout_T"] == row].tolist() == said[uid]
        held = [torch.load(file)["id_T"] for file in (tmp_path / "stores").glob("*.pt")]
        assert sum(map(len, held)) <= 2 * back.size("T")
    assert columns["rollout_uid_B"].tolist() == [*range(100, 1500, 100), *range(1500, 1505)]


def test_what_a_checkpoint_refers_to_stays(tmp_path):
    stores = opened_in(tmp_path / "stores")
    one, two, three = (stores.put(n, {"id_T": torch.tensor([n])}) for n in (1, 2, 3))
    stores.kept = {one}
    stores.sweep({three}, 3)
    assert stores.get(one)["id_T"].tolist() == [1]
    assert stores.get(three)["id_T"].tolist() == [3]
    with pytest.raises(UserError, match="lacks"):
        stores.get(two)


def test_what_another_process_puts_away_ahead_stays(tmp_path):
    stores, others = opened_in(tmp_path / "stores"), opened_in(tmp_path / "stores")
    one, four = (others.put(n, {"id_T": torch.tensor([n])}) for n in (1, 4))
    (tmp_path / "stores" / ".000005-00000000.pt.unfinished").touch()
    stores.ahead = True
    stores.sweep(set(), 3)
    assert stores.get(four)["id_T"].tolist() == [4]
    assert len([*(tmp_path / "stores").glob(".*.unfinished")]) == 1
    with pytest.raises(UserError, match="lacks"):
        stores.get(one)
    stores.sweep(set(), 4)
    assert not [*(tmp_path / "stores").glob("*4-*.pt")]


def test_an_empty_step_writes_nothing(tmp_path):
    stores = opened_in(tmp_path / "stores")
    nobody = rows_of(1).keep(torch.zeros(5, dtype=torch.bool))
    kept = columns_of(put_away(nobody, 1, stores), 1, stores)
    assert files_in({"curation.replay": {"columns": kept}}) == set()
    assert not (tmp_path / "stores").exists()
    services = dataclasses.make_dataclass("Services", ["stores"])(stores)
    part = ReplayRollouts()
    result = run(part, nobody, state=part.init(), rng=torch.Generator(), services=services)
    assert result.value.add.size("B") == 0


# -- through the command line ------------------------------------------------------------------


# Options of a recipe's run with which some rollouts return within six steps.
REPLAYING = {"remix": (), "dart": ("data.train_size=3", "sampling.num_prompts=3")}
STEPS = 6


class Killed(BaseException):
    """Stands for a kill: nothing in the command expects it."""


def words_of(lab, folder, recipe="remix", seed=0, steps=STEPS):
    return [
        "train", recipe, *lab.arguments(), f"seed={seed}", f"training.steps={steps}",
        "training.save_every=2", "rollout.temperature=2.0", *REPLAYING.get(recipe, ()),
        "--out", folder,
    ]  # fmt: skip


@pytest.mark.parametrize("recipe", REPLAYING)
def test_a_killed_run_goes_on_with_its_files(recipe, lab, strop, tmp_path, monkeypatch):
    """Killed behind its fifth step, whose file no checkpoint refers to."""
    assert strop(*words_of(lab, tmp_path / "whole", recipe)).code == 0
    plain = loop.train_step

    def killed(world, method, state, step, tokens=None):
        if step == STEPS:
            raise Killed
        return plain(world, method, state, step, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", killed)
        with pytest.raises(Killed):
            strop(*words_of(lab, tmp_path / "killed", recipe))
    assert len(without_times(tmp_path / "killed")) == STEPS - 1
    assert strop("train", "--resume", tmp_path / "killed").code == 0
    lines = without_times(tmp_path / "whole")
    assert without_times(tmp_path / "killed") == lines
    names = [{f.name for f in (tmp_path / run / "stores").iterdir()} for run in ("whole", "killed")]
    assert names[0] == names[1]
    assert any(line["replay/drawn"] > 0 for line in lines)
    places = checkpoint.complete(tmp_path / "whole/checkpoints")
    assert len(places) == 3
    kept = set().union(*map(checkpoint.stored_in, places))
    assert len(names[0]) == len(kept) + 1  # and about.json


def test_a_strange_or_damaged_store_is_refused_before_a_step(lab, strop, tmp_path):
    run = tmp_path / "one"
    assert strop(*words_of(lab, run, steps=3)).code == 0
    assert strop(*words_of(lab, tmp_path / "two", seed=1, steps=1)).code == 0
    before = (run / "metrics.jsonl").read_text()
    more = ["train", "--resume", run, "training.steps=4"]
    shutil.move(run / "stores", tmp_path / "own")
    shutil.copytree(tmp_path / "two/stores", run / "stores")
    code, _, said = strop(*more)
    assert code == 2
    assert "is the store of another run" in said
    shutil.rmtree(run / "stores")
    shutil.copytree(tmp_path / "own", run / "stores")
    newest = sorted((run / "stores").glob("*.pt"))[-1]
    newest.write_bytes(b"nothing")
    code, _, said = strop(*more)
    assert code == 2
    assert f"{newest.name} is damaged" in said.replace("\n", " ")
    assert (run / "metrics.jsonl").read_text() == before
    shutil.copy(tmp_path / "own" / newest.name, newest)
    first = checkpoint.complete(run / "checkpoints")[0]
    torch.save({"names": []}, first / "stores.pt")
    code, _, said = strop(*more)
    assert code == 2
    assert "stores.pt does not fit" in said.replace("\n", " ")
    shutil.rmtree(first)
    # what --resume may change makes it no other run
    assert strop(*more, "tracking.name=mine", "ray.restarts=3").code == 0
