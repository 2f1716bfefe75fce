"""Trackio: a database on this machine (TRACKIO_DIR), or a Space (TRACKIO_SPACE_ID)."""

import secrets
from collections.abc import Mapping

from strop.tracking.base import RunInfo, Samples, Tracker


class ToTrackio(Tracker):
    """Numbers by step, the settings as its configuration, tables of rollouts.

    A run is found again by its name, so a few letters are added that no other run has.
    """

    def __init__(self, info: RunInfo) -> None:
        import trackio

        super().__init__(info)
        self.id = info.id or f"{info.name}-{secrets.token_hex(3)}"
        self.tables = trackio.Table
        self.run = trackio.init(
            project=info.project,
            name=self.id,
            config=dict(info.config),
            resume="allow" if info.id else "never",
            embed=False,
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """A line of its log."""
        self.run.log(dict(values), step=step)

    def samples(self, step: int, samples: Samples) -> None:
        """A table, at its step."""
        rows = [dict(zip(samples.columns, row, strict=True)) for row in samples.rows]
        self.run.log({"rollouts": self.tables(dataframe=_Records(rows))}, step=step)

    def end(self, ok: bool) -> None:
        """Write what is left."""
        self.run.finish()


class _Records(list[dict[str, object]]):
    """Rows in the shape of a data frame, as far as a table asks for one: no pandas is needed."""

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        """The rows; `orient` is "records"."""
        return list(self)
