"""The version of this package, and where its source files lie."""

from pathlib import Path

VERSION = "0.2.0"
SOURCE = Path(__file__).parents[1]  # the folder of the package
PARTS = SOURCE / "parts"  # holds a folder for each kind of part
PARTS_MODULE = "strop.parts"  # the same as a module's name
BASE = "base"  # what the model without an adapter is called beside those with one
