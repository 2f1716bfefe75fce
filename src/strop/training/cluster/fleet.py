"""The engine of a run on Ray: a fleet that the first training process speaks with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from strop.errors import UserError
from strop.rollout.engines.fleet import FleetEngine
from strop.training.cluster.connect import LED_ENGINES
from strop.training.config import RunConfig
from strop.training.models import Loaded
from strop.training.ranks import Ranks

if TYPE_CHECKING:
    from strop.training.cluster.crew import RayCrew


def open_fleet(config: RunConfig, loaded: Loaded, ranks: Ranks) -> FleetEngine:
    """`ray.num_engines` engines of the run's settings. Raises UserError.

    ranks: that train; each has a fleet, and hears what the first one is told.
    """
    if getattr(config.engine, "staleness", 0):
        raise UserError(
            "engine.staleness on Ray: an engine that is begun anew lacks the weights of older "
            "steps: leave one of the two out; training.max_staleness trains on old rollouts"
        )
    if getattr(config.engine, "url", ""):
        raise UserError(
            "engine.url on Ray: every engine would be that one server: leave one of the two out"
        )
    crews: list[RayCrew] = []

    def hire() -> None:
        from strop.training.cluster.crew import RayCrew

        crews.append(RayCrew(config))

    ranks.from_first(hire)
    crew = crews[0] if crews else None
    alone = config.training.max_staleness > 0 and not config.training.renew_between_tokens
    try:
        engine = FleetEngine(crew, loaded.model, ranks.from_first, renews_alone=alone)
        if LED_ENGINES in os.environ:  # they may have those of a process that was lost
            engine.load_weights(None, 0)
        return engine
    except BaseException:
        if crew is not None:
            crew.close()
        raise
