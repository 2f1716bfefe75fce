"""The connection to Ray, and room on its machines. Ray starts, watches and ends the processes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from strop.errors import UserError
from strop.training.settings import RaySettings

LOCAL = "local"
NAMESPACE = "strop"  # of names on a cluster
# What trainers find in their environment: the Ray that the driver is connected to, and the names
# of the engines that it has begun.
LED, LED_ENGINES = "STROP_RAY_ADDRESS", "STROP_RAY_ENGINES"
LOOK_SECONDS = 1.0
REACH_SECONDS = 10.0
RESERVE_SECONDS = 60.0  # for what others give back
BEGIN_SECONDS = 600.0  # at least, for Ray to begin a process and for it to load the model


def library() -> Any:
    """The module ray. Raises UserError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"--ray needs Ray, which cannot be imported ({error}): pip install 'strop[ray]'"
        ) from error
    return ray


def connect(settings: RaySettings) -> Any:
    """Ray, connected; `local` starts it on this machine, until this process ends.

    There the processes may be more than its CPUs: they take turns. Raises UserError where it cannot
    be reached or is of another version.
    """
    ray = library()
    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address, more = settings.address, dict[str, Any]()
    if address == LOCAL and LED in os.environ:
        address = os.environ[LED]
    if address == LOCAL:
        wanted = settings.num_engines * max(settings.cpus_per_engine, 1)
        wanted += cpus_besides(settings)
        more = {"include_dashboard": False, "num_cpus": max(wanted, os.cpu_count() or 1)}
    else:
        _reach(address)
    handled = signal.getsignal(signal.SIGTERM)  # Ray would let it end this process at once
    try:
        ray.init(
            address=address,
            log_to_driver=settings.num_trainers > 0,
            logging_level="warning",
            **more,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"--ray {address}: {first_line(error)}; --ray local starts Ray on this machine, "
            "`ray start` a cluster, whose address it prints"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handled)
    return ray


def _reach(address: str) -> None:
    """Raise UserError where nothing listens at host:port, which Ray takes minutes to say."""
    host, colon, port = address.rpartition(":")
    if not colon:  # auto, which Ray looks up
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--ray {address}: nothing answers there ({error}): is the address the one that "
            "`ray start` printed, and the port open?"
        ) from error


def reserve(ray: Any, bundles: list[dict[str, float]], what: str) -> Any:
    """Room for these (CPU, GPU), which others cannot take. Raises UserError where there is none."""
    from ray.util.placement_group import placement_group, remove_placement_group

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
    ready, begun = group.ready(), time.monotonic()
    while not ray.wait([ready], timeout=LOOK_SECONDS)[0]:
        if time.monotonic() - begun > RESERVE_SECONDS:
            remove_placement_group(group)
            raise UserError(
                f"{what} need {_told(bundles)}, each on one machine, and found no such room within "
                f"{RESERVE_SECONDS:g} s: `ray status` shows what is free"
            )
    return group


def _told(bundles: list[dict[str, float]]) -> str:
    each = [" and ".join(f"{n:g} {kind}" for kind, n in bundle.items()) for bundle in bundles]
    return ", ".join(each)


def cpus_besides(settings: RaySettings) -> int:
    """CPUs of all that are no engines."""
    playing = settings.num_environments * settings.cpus_per_environment
    training = settings.num_trainers * settings.cpus_per_trainer
    return training + playing + settings.cpus_for_rewards


def cpus_each(ray: Any, settings: RaySettings) -> int:
    """CPUs of an engine: as asked for, else an equal share of what the cluster has."""
    if settings.cpus_per_engine:
        return settings.cpus_per_engine
    left = int(ray.cluster_resources().get("CPU", 1)) - cpus_besides(settings)
    return max(left // settings.num_engines, 1)


def enter(folder: str, search: list[str]) -> None:
    """Work, in an actor, in the folder that the command was given in, and find its modules."""
    if Path(folder).is_dir():
        os.chdir(folder)
    sys.path += [place for place in search if place not in sys.path]


def first_line(error: Exception) -> str:
    """What an error of Ray says, without the stack of another process."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)
