"""Runs strop's recipes inside other trainers. A module here imports strop and one other trainer;
nothing in strop imports these modules."""
