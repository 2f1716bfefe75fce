"""Predicts a run's throughput on other numbers of workers: measured costs and a simulation."""
