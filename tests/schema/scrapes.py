"""A scrape against the table of metrics."""

import re

from fairlead.schema.metrics import METRICS, Process

Facts = set[tuple[str, str]]
"""Names and types."""


def scraped(text: str) -> Facts:
    """What a scrape announces; every sample must belong to one of them."""
    found = set(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    samples = set(re.findall(r"^(\w+)[ {]", re.sub(r"^#.*$", "", text, flags=re.MULTILINE), re.M))
    suffixed = {
        f"{name}{suffix}"
        for name, kind in found
        for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    assert samples <= suffixed, samples - suffixed
    return found


def names_of(process: Process) -> Facts:
    """What the table says of a process."""
    return {(row.name, row.kind.value) for row in METRICS[process]}
