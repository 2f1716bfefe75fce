"""Logs to Weights & Biases; offline with WANDB_MODE=offline, as in any program."""

from collections.abc import Mapping

from strop.tracking.base import RunInfo, Samples, Tracker


class ToWandb(Tracker):
    """Numbers over `step`, the settings as its configuration, tables of rollouts."""

    def __init__(self, info: RunInfo) -> None:
        import wandb

        super().__init__(info)
        self.tables = wandb.Table
        self.run = wandb.init(
            project=info.project,
            name=info.name,
            id=info.id or None,
            resume="allow" if info.id else None,
            dir=str(info.folder),
            # wandb interprets dots in names as levels
            config={path.replace(".", "/"): value for path, value in info.config.items()},
            allow_val_change=True,  # a resumed run may have more steps
            reinit="create_new",
            settings=wandb.Settings(console="off"),  # the command prints its own output
        )
        self.id = self.run.id
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log a line of the history."""
        self.run.log({**values, "step": step})

    def samples(self, step: int, samples: Samples) -> None:
        """Log a table, as another line of the history."""
        table = self.tables(columns=samples.columns, data=samples.rows, allow_mixed_types=True)
        self.run.log({"rollouts": table, "step": step})

    def end(self, ok: bool) -> None:
        """Send what is pending."""
        self.run.finish(exit_code=0 if ok else 1)
