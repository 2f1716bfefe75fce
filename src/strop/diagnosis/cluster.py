"""Checks the machines of a Ray cluster before a run, for `strop doctor --ray`."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from strop.diagnosis.finding import Finding
from strop.support.about import VERSION
from strop.support.errors import first_line
from strop.support.writing import writing
from strop.training.cluster.connect import connect, cpus_besides, cpus_each

GIB = 2**30
PACKAGES = ("torch", "transformers", "ray")
TRIAL_BYTES = 32 * 2**20  # of the trial broadcast, at least
SLOW = 100e6  # bytes a second
START_SECONDS = 120.0  # for a process to start on another machine
COPIES = 2  # of the weights, which a store holds while new ones arrive


def look(path: str) -> dict[str, Any]:
    """A machine's versions and GPUs, and whether it sees a path."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "strop": VERSION}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return {"versions": found, "gpus_found": gpus, "sees": Path(path).exists()}


def fetch(refs: Sequence[Any]) -> float:
    """Seconds that this machine takes to read what another one put into the object store."""
    import ray

    started = time.perf_counter()
    (data,) = ray.get(list(refs))
    np.copy(data)
    return time.perf_counter() - started


def examine(settings: Any, size: int) -> tuple[dict[str, Any], list[str], list[Finding]]:
    """The report, its text and the findings about the cluster at `ray.address`. Raises UserError.

    size: bytes of the weights; 0: unknown.
    """
    ray = connect(settings.ray)
    nodes = sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: n["NodeManagerAddress"])
    mark = Path.cwd() / f".seen-{uuid.uuid4().hex}"
    with writing(mark.parent, "a mark"):
        mark.touch()
    try:
        replies, failed = _ask(ray, nodes, look, str(mark))
    finally:
        mark.unlink()
    sent = max(size, TRIAL_BYTES)
    started = time.perf_counter()
    ref = ray.put(np.zeros(sent, np.uint8))
    put = time.perf_counter() - started
    alive = [node for node in nodes if node["NodeID"] in replies]
    seconds, _ = _ask(ray, alive, fetch, [ref])
    report = {
        "address": settings.ray.address,
        "nodes": [_node(node, replies.get(node["NodeID"])) for node in nodes],
        "broadcast": {"bytes": sent, "put_seconds": put, "seconds": [*seconds.values()]},
    }
    found = [
        _answers(nodes, failed),
        _versions(report["nodes"]),
        _room_to_work(ray, settings, report["nodes"]),
        _broadcast(report["broadcast"]),
        _store(report["nodes"], size),
        _folder(report["nodes"], mark.parent),
    ]
    return report, _lines(report), found


def _ask(
    ray: Any, nodes: Sequence[Mapping[str, Any]], function: Any, *given: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    """A function's results by machine, called on all at once; and the errors of failed calls."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = {"num_cpus": 0, "scheduling_strategy": there, "max_retries": 0}
        if function is look and (gpus := node["Resources"].get("GPU", 0)):
            options["num_gpus"] = gpus  # it sees those alone that it asks for
        asked[node["NodeID"]] = ray.remote(function).options(**options).remote(*given)
    found, failed = {}, {}
    until = time.monotonic() + START_SECONDS
    for id, ref in asked.items():
        try:
            found[id] = ray.get(ref, timeout=max(until - time.monotonic(), 1.0))
        except (ray.exceptions.RayError, TimeoutError) as error:
            failed[id] = first_line(error)
    return found, failed


def _node(node: Mapping[str, Any], reply: Mapping[str, Any] | None) -> dict[str, Any]:
    own = node["Resources"]
    return {
        "address": node["NodeManagerAddress"],
        "cpus": own.get("CPU", 0.0),
        "gpus": own.get("GPU", 0.0),
        "store_bytes": own.get("object_store_memory", 0.0),
        **(reply or {}),
    }


def _answers(nodes: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> Finding:
    question = "Does every machine answer?"
    if not failed:
        return Finding(question, "ok", f"{len(nodes)} of {len(nodes)} machines ran a task.")
    id, why = next(iter(failed.items()))
    address = next(node["NodeManagerAddress"] for node in nodes if node["NodeID"] == id)
    return Finding(
        question, "problem", f"{len(failed)} of {len(nodes)} did not, first {address}: {why}",
        "install strop there, in the same Python, and look at that machine with `ray status`",
    )  # fmt: skip


def _versions(nodes: Sequence[Mapping[str, Any]]) -> Finding:
    question = "Do all machines have the same versions?"
    reporting = [node for node in nodes if "versions" in node]
    if not reporting:
        return Finding(question, "unknown", "No machine reported them.")
    first = reporting[0]
    for other in reporting[1:]:
        for name, number in first["versions"].items():
            if other["versions"][name] != number:
                return Finding(
                    question, "problem",
                    f"{name} is {number} on {first['address']} and {other['versions'][name]} on "
                    f"{other['address']}.",
                    "install the same versions everywhere: tokens of two versions may differ",
                )  # fmt: skip
    text = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    return Finding(question, "ok", f"{text}.")


def _room_to_work(ray: Any, settings: Any, nodes: Sequence[Mapping[str, Any]]) -> Finding:
    question = "Is there room for the engines and trainers?"
    own = settings.ray
    cpus = own.num_engines * cpus_each(ray, own) + cpus_besides(own)
    besides = own.num_environments + bool(own.cpus_for_rewards)
    gpus = own.num_engines * own.gpus_per_engine + own.num_trainers * own.gpus_per_trainer
    has = {kind: sum(node[kind] for node in nodes) for kind in ("cpus", "gpus")}
    answer = (
        f"{own.num_engines} engines and {own.num_trainers} trainers"
        f"{', and the processes that play or grade,' if besides else ''} need {cpus:g} CPUs and "
        f"{gpus:g} GPUs; the machines have {has['cpus']:g} and {has['gpus']:g}."
    )
    if cpus > has["cpus"] or gpus > has["gpus"]:
        advice = "lower ray.num_engines, ray.num_trainers or the share of each, or add machines"
        return Finding(question, "problem", answer, advice)
    if has["gpus"] and not gpus:
        advice = "give them some: ray.gpus_per_engine=1 ray.gpus_per_trainer=1"
        return Finding(question, "note", f"{answer} No GPU would be used.", advice)
    return Finding(question, "ok", answer)


def _broadcast(found: Mapping[str, Any]) -> Finding:
    question = "How fast do weights reach the machines?"
    if not found["seconds"]:
        return Finding(question, "unknown", "No machine read them.")
    seconds = found["put_seconds"] + max(found["seconds"])
    rate = found["bytes"] / seconds
    answer = (
        f"{found['bytes'] / 2**20:.0f} MiB went into the object store and were read by "
        f"{len(found['seconds'])} machines in {seconds:.2f} s: {rate / 1e6:.0f} MB/s to each."
    )
    numbers = {"bytes_per_second": rate, "seconds": seconds}
    if rate < SLOW:
        advice = "look at the network between the machines: every step sends the trained weights"
        return Finding(question, "note", answer, advice, numbers)
    return Finding(question, "ok", answer, numbers=numbers)


def _store(nodes: Sequence[Mapping[str, Any]], size: int) -> Finding:
    question = "Do the weights fit into the object store?"
    least = min(nodes, key=lambda node: float(node["store_bytes"]))
    room = float(least["store_bytes"])
    if not size:
        return Finding(
            question, "unknown", f"The smallest has {room / GIB:.2f} GiB, on {least['address']}.",
            "name the model, with --model",
        )  # fmt: skip
    answer = (
        f"Two versions of the weights are {COPIES * size / GIB:.2f} GiB; the smallest store has "
        f"{room / GIB:.2f} GiB, on {least['address']}."
    )
    numbers = {"needed_bytes": COPIES * size, "store_bytes": room}
    if COPIES * size > room:
        advice = "start Ray there with more object_store_memory, or train adapters: model.lora_rank"
        return Finding(question, "problem", answer, advice, numbers)
    return Finding(question, "ok", answer, numbers=numbers)


def _folder(nodes: Sequence[Mapping[str, Any]], folder: Path) -> Finding:
    question = "Do all machines see this folder?"
    lacking = [node["address"] for node in nodes if node.get("sees") is False]
    if not lacking:
        return Finding(question, "ok", f"{folder} is the same on all that answered.")
    return Finding(
        question, "problem", f"{lacking[0]} does not see {folder} as it is here.",
        "run from a folder that all machines share; files and the model must lie in one, too",
    )  # fmt: skip


def _lines(report: Mapping[str, Any]) -> list[str]:
    lines = [f"Ray at {report['address']}:"]
    for node in report["nodes"]:
        names = f" ({', '.join(sorted(set(node['gpus_found'])))})" if node.get("gpus_found") else ""
        lines.append(
            f"{node['address']}: {node['cpus']:g} CPUs, {node['gpus']:g} GPUs{names}, object store "
            f"{node['store_bytes'] / GIB:.2f} GiB"
        )
    return lines
