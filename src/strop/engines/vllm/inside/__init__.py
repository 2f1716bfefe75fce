"""Modules for vLLM's processes, whose environment need not have strop: torch and vLLM suffice.

There each file is a top-level module, found by its name on the PYTHONPATH.
"""
