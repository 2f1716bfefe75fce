"""Weights sent through a group of processes (here threads): whole or not at all."""

import threading
from typing import Any

import pytest
import torch

from strop.support.errors import RunStopped
from strop.training.cluster.broadcast import Group, in_buckets
from strop.training.cluster.engine_worker import packed, unpacked

WEIGHTS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.randn(5, generator=torch.manual_seed(0)).bfloat16(),
    "c": torch.zeros(0, 3),
    "d": torch.arange(4.0),
    "e": torch.tensor(2.5),
}


def together(count: int, work: Any) -> list[Any]:
    """What every one of so many processes comes to, or raises. work: (group, its number)."""
    store, found = torch.distributed.HashStore(), [None] * count

    def one(number: int) -> None:
        try:
            found[number] = work(Group(store, number, count, nccl=False, seconds=20), number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    return found


def test_buckets_hold_one_type_and_no_more_than_their_bytes():
    found = in_buckets(WEIGHTS, most_bytes=28)
    names = [[name for name, _ in bucket.shapes] for bucket in found]
    assert names == [["a", "c"], ["b"], ["d", "e"]]
    assert [bucket.size for bucket in found] == [6, 5, 5]
    assert [bucket.kind for bucket in found] == [torch.float32, torch.bfloat16, torch.float32]
    assert [len(bucket.shapes) for bucket in in_buckets(WEIGHTS, 1)] == [1, 1, 1, 1, 1]
    assert [bucket.size for bucket in in_buckets(WEIGHTS)] == [11, 5]
    (empty,) = in_buckets({"c": WEIGHTS["c"]})  # which needs no bytes, and a bucket all the same
    assert empty.shapes == (("c", (0, 3)),)


@pytest.mark.parametrize("most_bytes", [8, 2**20])
def test_all_get_the_weights_of_a_version_one_after_another(most_bytes):
    buckets = in_buckets(WEIGHTS, most_bytes)

    def work(group: Group, number: int) -> Any:
        if number:
            return [group.take(buckets, version, torch.device("cpu")) for version in (3, 4)]
        group.send(WEIGHTS, buckets, 3)
        return group.send({name: value + 1 for name, value in WEIGHTS.items()}, buckets, 4)

    for first, second in together(3, work)[1:]:
        assert first.keys() == WEIGHTS.keys()
        for name, value in WEIGHTS.items():
            assert first[name].dtype == value.dtype
            assert first[name].equal(value)
            assert second[name].equal(value + 1)


def test_what_ends_half_way_is_no_version():
    def work(group: Group, number: int) -> Any:
        buckets = in_buckets(WEIGHTS, 28)
        if number:
            return group.take(buckets, 3, torch.device("cpu"))
        with pytest.raises(KeyError):
            group.send({name: WEIGHTS[name] for name in "abc"}, buckets, 3)
        group.inner = None
        return None

    _, one, other = together(3, work)
    assert isinstance(one, RuntimeError)
    assert isinstance(other, RuntimeError)


def test_another_version_is_refused():
    def work(group: Group, number: int) -> Any:
        if number:
            return group.take(in_buckets(WEIGHTS), 3, torch.device("cpu"))
        return group.send(WEIGHTS, in_buckets(WEIGHTS), 4)

    found = together(2, work)
    assert isinstance(found[1], RunStopped)
    assert "received weights of version 4, not 3" in str(found[1])


def test_weights_as_bytes_are_the_same_and_their_storage_can_be_let_go():
    weights = {"t": torch.randn(3, 4).T, **{name: each.clone() for name, each in WEIGHTS.items()}}
    found = unpacked(packed(weights))
    for name, value in weights.items():
        assert found[name].dtype == value.dtype
        assert found[name].equal(value)
    del found
    for value in weights.values():
        value.untyped_storage().resize_(0)
