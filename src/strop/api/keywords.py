"""Keywords of calls such as `strop.train`. Their types are in keywords.pyi, which
`python tools/write_catalogue.py` writes from settings and parts, for type checkers and editors.
"""

from typing import Any

Options = dict[str, Any]
