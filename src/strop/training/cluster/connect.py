"""Connects to Ray and reserves resources. Ray starts, watches and ends the processes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from strop.support.errors import UserError, first_line, needs_extra
from strop.support.loading import search_path
from strop.support.stopping import holding
from strop.training.settings.sections import RaySettings

LOCAL = "local"
NAMESPACE = "strop"  # of names on a cluster
# Environment variables of the trainers: the address of the driver's Ray, and the name prefix of the
# engines that the driver has started.
LED, LED_ENGINES = "STROP_RAY_ADDRESS", "STROP_RAY_ENGINES"
LOOK_SECONDS = 1.0
REACH_SECONDS = 10.0
RESERVE_SECONDS = 60.0  # for other jobs to release resources
MOST_TRIES = 3  # how often a call whose actor was lost is repeated
BEGIN_SECONDS = 600.0  # at least, for Ray to start a process and for the process to load the model
# The address by which this process has connected to each cluster, by the cluster's own address.
_CONNECTED: dict[str, str] = {}


def library() -> Any:
    """Import the module ray. Raises UserError when it is not installed."""
    with needs_extra("--ray needs Ray, which cannot be imported", "ray"):
        import ray
    return ray


def connect(settings: RaySettings) -> Any:
    """Connect to Ray and return it; `local` starts it on this machine, until this process ends.

    With `local`, more processes than CPUs may run and share them. Raises UserError when Ray cannot
    be reached or has another version, and when this process has connected to another address.
    """
    ray = library()
    address, more = settings.address, dict[str, Any]()
    if address == LOCAL and LED in os.environ:
        address = os.environ[LED]
    if ray.is_initialized():
        _check_same(ray, address)
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:
        wanted = settings.num_engines * max(settings.cpus_per_engine, 1)
        wanted += cpus_besides(settings)
        more = {"include_dashboard": False, "num_cpus": max(wanted, os.cpu_count() or 1)}
    else:
        _reach(address)
    try:
        with holding(signal.SIGTERM):  # Ray's own handler ends the process silently
            ray.init(
                address=address,
                log_to_driver=settings.num_trainers > 0,
                logging_level="warning",
                **more,
            )
    except Exception as error:  # Ray raises that very class where its node starts too slowly
        raise UserError(
            f"--ray {address}: {first_line(error)}; --ray local starts Ray on this machine, "
            "`ray start` a cluster, whose address it prints"
        ) from error
    _CONNECTED[ray.get_runtime_context().gcs_address] = address
    return ray


def _check_same(ray: Any, address: str) -> None:
    """Raise UserError when this process has connected to another address than this one.

    A cluster that the user has connected to, or that started this process, is used as it is.
    """
    own = ray.get_runtime_context().gcs_address if _CONNECTED else ""
    first = _CONNECTED.get(own, address)
    if address not in (first, own):
        raise UserError(
            f"--ray {address}: this process is connected to Ray at {first}: give that address, or "
            "call ray.shutdown() first"
        )


def _reach(address: str) -> None:
    """Raise UserError when nothing listens at host:port; Ray would report this after minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:  # auto, which Ray looks up
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"--ray {address}: nothing answers there ({error}): is the address the one that "
            "`ray start` printed, and the port open?"
        ) from error


def reserve(ray: Any, bundles: list[dict[str, float]], what: str) -> Any:
    """Reserve these bundles of CPUs and GPUs. Raises UserError when there is no room."""
    from ray.util.placement_group import placement_group

    bundles = [{kind: number for kind, number in each.items() if number} for each in bundles]
    total = ray.cluster_resources()
    for kind in ("CPU", "GPU"):
        needed = sum(each.get(kind, 0) for each in bundles)
        if needed > total.get(kind, 0):
            raise UserError(
                f"{what} need {needed:g} {kind}s and the cluster has {total.get(kind, 0):g}: give "
                "fewer or smaller ones (ray.num_engines, ray.num_trainers, ray.cpus_per_engine, "
                "...), or more machines"
            )
    group = placement_group(bundles, strategy="PACK")
    ready, started = group.ready(), time.monotonic()
    while not ray.wait([ready], timeout=LOOK_SECONDS)[0]:
        if time.monotonic() - started > RESERVE_SECONDS:
            ray.util.remove_placement_group(group)
            raise UserError(
                f"{what} need {_describe(bundles)}, each on one machine, and found no such room "
                f"within {RESERVE_SECONDS:g} s: `ray status` shows what is free"
            )
    return group


def _describe(bundles: list[dict[str, float]]) -> str:
    each = [" and ".join(f"{n:g} {kind}" for kind, n in bundle.items()) for bundle in bundles]
    return ", ".join(each)


def actors_in(
    ray: Any, group: Any, kind: type, *given: Any, name: str = "", restarts: int = -1
) -> list[Any]:
    """Start actors of a class, one with each bundle of a reserved group.

    The class gets `given`, and what `enter` takes. name: the prefix of their names on the cluster.
    restarts: how often Ray restarts one that dies; -1: always.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return [
        ray.remote(kind)
        .options(
            name=f"{name}-{number}" if name else None,
            namespace=NAMESPACE if name else None,
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            max_restarts=restarts,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=number
            ),
        )
        .remote(*given, str(Path.cwd()), search_path())
        for number, bundle in enumerate(group.bundle_specs)
    ]


def answer(ray: Any, ref: Any, timeout: float | None = None) -> Any:
    """The answer to a call of an actor. Raises what the call raised there, and RayError where the
    actor is lost or the time is over.
    """
    try:
        return ray.get(ref, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def cpus_besides(settings: RaySettings) -> int:
    """Returns the CPUs of all processes that are not engines."""
    playing = settings.num_environments * settings.cpus_per_environment
    training = settings.num_trainers * settings.cpus_per_trainer
    return training + playing + settings.cpus_for_rewards


def cpus_each(ray: Any, settings: RaySettings) -> int:
    """Returns the CPUs of an engine: as requested, else an equal share of what the cluster has."""
    if settings.cpus_per_engine:
        return settings.cpus_per_engine
    left = int(ray.cluster_resources().get("CPU", 1)) - cpus_besides(settings)
    return max(left // settings.num_engines, 1)


def why_not_running(ray: Any, actor: Any) -> str:
    """Wait until Ray has started or restarted an actor's process; returns why it cannot, or "".

    Other calls fail while the process is restarted; Ray repeats this one until it is answered.
    """
    try:
        ray.get(actor.__ray_ready__.options(max_task_retries=-1).remote(), timeout=BEGIN_SECONDS)
    except ray.exceptions.GetTimeoutError:
        return f"Ray has not started it within {BEGIN_SECONDS:g} s: does a machine have room?"
    except ray.exceptions.RayError as error:
        return first_line(error)
    return ""


def enter(folder: str, search: list[str]) -> None:
    """Switch an actor to the working directory and module search path of the command."""
    if Path(folder).is_dir():
        os.chdir(folder)
    sys.path += [place for place in search if place not in sys.path]
