"""The border, the only place that parses input: what passes is well-formed and in range.

The kinds of decisions are imported on use: they bring every governor's decision code with them
(200 ms), and most commands only want to read a document.
"""

from typing import TYPE_CHECKING

from fairlead.schema.border import BadInput, parse_json, read_document

if TYPE_CHECKING:
    from fairlead.schema.kinds import KINDS, Decision, Kind

__all__ = ["KINDS", "BadInput", "Decision", "Kind", "parse_json", "read_document"]


def __getattr__(name: str) -> object:
    if name not in ("KINDS", "Decision", "Kind"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlead.schema import kinds  # noqa: PLC0415 - see above

    return getattr(kinds, name)
