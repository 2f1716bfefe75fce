"""Run the notebooks of docs/notebooks/ from a clean start and store their outputs.

    python tools/run_notebooks.py [NAME.ipynb ...] [--into FOLDER]

The notebooks run in an empty folder. Without --into they are overwritten in place.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def executed(path: Path) -> Any:
    """The notebook with the outputs of a run, without times and names of this machine."""
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(book, timeout=600, kernel_name="python3",
                                resources={"metadata": {"path": folder}})  # fmt: skip
        client.execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return book


def main() -> None:
    """Run the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=sorted(p.name for p in NOTEBOOKS.glob("*.ipynb"))
    )
    parser.add_argument("--into", type=Path, default=NOTEBOOKS)
    given = parser.parse_args()
    if unknown := [name for name in given.names if not (NOTEBOOKS / name).is_file()]:
        parser.error(f"docs/notebooks has no {', '.join(unknown)}")
    given.into.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # a warning of tqdm
    for name in given.names:
        book = executed(NOTEBOOKS / name)
        nbformat.write(book, given.into / name)
        print(f"ran {name}")


if __name__ == "__main__":
    main()
