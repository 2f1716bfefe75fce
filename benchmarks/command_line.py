"""Options that several programs of this folder take: some of the known names, and a device."""

import argparse
from collections.abc import Callable, Collection

import torch


def some_of(known: Collection[str], apart: str = ",") -> Callable[[str], list[str]]:
    """The type of an option that names some of the known things."""

    def read(text: str) -> list[str]:
        names = text.split(apart)
        if unknown := [name for name in names if name not in known]:
            there = ", ".join(known)
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {there}")
        return names

    return read


def device_here(text: str) -> str:
    """The type of --device: `cpu`, or a GPU that is there."""
    if text != "cpu" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text}: there is no GPU here; cpu tries the program")
    return text
