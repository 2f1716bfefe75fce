"""What runs in vLLM's processes, in an environment that need not have strop: torch and vLLM alone.

Over there each file is a module of its own, found by its name on the PYTHONPATH.
"""
