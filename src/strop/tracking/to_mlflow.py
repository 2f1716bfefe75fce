"""Logs to MLflow: a server, database or folder (MLFLOW_TRACKING_URI), else MLflow's default."""

import json
import posixpath
import re
import time
from collections.abc import Mapping

from strop.tracking.base import RunInfo, Samples, Tracker

PARAMETERS_AT_ONCE, METRICS_AT_ONCE = 100, 1000  # limits of a server for one request
LONGEST = 500  # maximum characters of a parameter's value, in every store


class ToMlflow(Tracker):
    """Metrics by step, settings as parameters, config.toml and tables of rollouts as artifacts.

    The project is MLflow's experiment. A table is in the form that `mlflow.load_table` reads.
    """

    def __init__(self, info: RunInfo) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        super().__init__(info)
        self.client, self.metric = MlflowClient(), Metric
        if info.id:
            self.client.update_run(info.id, status="RUNNING")
        else:
            found = self.client.get_experiment_by_name(info.project)
            place = found.experiment_id if found else self.client.create_experiment(info.project)
            self.id = self.client.create_run(place, run_name=info.name).info.run_id
            values = [Param(plain(k), str(v)[:LONGEST]) for k, v in info.config.items()]
            for begin in range(0, len(values), PARAMETERS_AT_ONCE):
                some = values[begin : begin + PARAMETERS_AT_ONCE]
                self.client.log_batch(self.id, params=some)
        self.client.log_text(self.id, info.text, "config.toml")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log a point of every metric."""
        now = int(time.time() * 1000)
        points = [self.metric(plain(k), value, now, step) for k, value in values.items()]
        for begin in range(0, len(points), METRICS_AT_ONCE):
            self.client.log_batch(self.id, metrics=points[begin : begin + METRICS_AT_ONCE])

    def samples(self, step: int, samples: Samples) -> None:
        """Log a table as an artifact."""
        table = json.dumps({"columns": samples.columns, "data": samples.rows})
        self.client.log_text(self.id, table, f"rollouts/step-{step:06d}.json")

    def end(self, ok: bool) -> None:
        """Set the run's final status."""
        self.client.set_terminated(self.id, "FINISHED" if ok else "FAILED")


def plain(name: str) -> str:
    """A name that every store of MLflow accepts: pass@8 becomes pass_at_8, a/b becomes a.b.

    MLflow's folders store a metric as a file, so `reward` and `reward/std` could not both exist.
    """
    words = posixpath.normpath(name).replace("@", "_at_").replace("/", ".").lstrip(".")
    return re.sub(r"[^\w\-. :]", "_", words)[:250] or "_"
