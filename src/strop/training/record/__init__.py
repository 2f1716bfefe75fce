"""The files of a run's folder: metrics, rollouts, checkpoints, versions."""
