"""Collects rollouts in the trainer's process or in a separate one."""
