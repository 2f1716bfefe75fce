"""Training in several processes: ranks, shards, watchdog."""
