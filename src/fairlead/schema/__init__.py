"""The border, the only place that parses input: what passes is well-formed and in range."""

from fairlead.schema.border import BadInput, parse_json, read_document
from fairlead.schema.kinds import KINDS, Kind, Outcome

__all__ = ["KINDS", "BadInput", "Kind", "Outcome", "parse_json", "read_document"]
