"""The version of this package, and the folder of its source files."""

from pathlib import Path

VERSION = "0.2.0"
SOURCE = Path(__file__).parents[1]  # the folder of the package
PARTS = SOURCE / "parts"  # holds a folder for each kind of part
PARTS_MODULE = "strop.parts"  # the same as a module's name
BASE = "base"  # name of the model without an adapter, beside the adapters' names
