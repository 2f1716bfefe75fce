"""The tables of a step: columns, rows, and arithmetic over groups of rows.

For authors of parts: `from strop.batch import Batch, Column, segments`.
"""

from strop.batch import segments
from strop.batch.batch import Batch, concatenate
from strop.batch.columns import Column

__all__ = ["Batch", "Column", "concatenate", "segments"]
