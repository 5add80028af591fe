"""Times and hours at the border: RFC 3339 with a zone, and decimal hours to whole milliseconds."""

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil, floor, nextafter
from typing import Annotated

from msgspec import Meta

from fairlead.core.units import HOUR_MS
from fairlead.schema.border import BadInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_MIN_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MS
_END_MS = _MIN_MS + (datetime.max - datetime.min) // _MS + 1
_NOW_END_MS = (datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) // _MS
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_NO_ZONE = re.compile(r"[+-]\d\d:[6-9]\d$", re.ASCII)

DURATION_MS_MAX = 366 * 86_400_000
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile("".join(rf"(?:(\d+){unit})?" for unit in _UNITS_MS), re.ASCII)

# How both are written in documents. The schema's form is for its readers and for API servers that
# check by it; the sentences of a refusal are those below.
DURATION_PATTERN = f"^{''.join(f'([0-9]+{unit})?' for unit in _UNITS_MS)}$"
TimeText = Annotated[
    str,
    Meta(
        description="RFC 3339 with a zone, e.g. 2026-01-01T00:00:00Z",
        extra_json_schema={"format": "date-time"},
    ),
]
DurationText = Annotated[
    str,
    Meta(
        description="like 90m, 2h, 1h30m, 45s, 1d",
        extra_json_schema={"pattern": DURATION_PATTERN, "minLength": 2, "maxLength": 60},
    ),
]


def parse_time(text: str, path: str) -> int:
    """Milliseconds since 1970; a time without a zone means something else everywhere."""
    if not _RFC3339.fullmatch(text):
        raise BadInput(path, f"must be a time like 2026-01-01T00:00:00Z, got {text!r}")
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise BadInput(path, f"must be a real time, got {text!r} ({error})") from error
    return (moment - _EPOCH) // _MS


def parse_kept_time(text: str, path: str) -> int:
    """The same for a time that is to be kept: its zone has at most 59 minutes, and does not move it
    off the calendar, where it could not be written again. Ledgers of former versions may hold such
    ones, in windows of budgets."""
    time_ms = parse_time(text, path)
    if _NO_ZONE.search(text):
        raise BadInput(path, f"must have a zone of at most 59 minutes, got {text!r}")
    if not _MIN_MS <= time_ms < _END_MS:
        raise BadInput(path, f"must be between the years 1 and 9999 in UTC, got {text!r}")
    return time_ms


def parse_now(text: str, path: str = "now") -> int:
    """The same for the present, which must lie in a calendar period that has an end."""
    now_ms = parse_time(text, path)
    if not _MIN_MS <= now_ms < _NOW_END_MS:
        raise BadInput(path, f"must be between the years 1 and 9998 in UTC, got {text!r}")
    return now_ms


def format_time(time_ms: int) -> str:
    """The same in UTC, milliseconds only where there are some."""
    moment = _EPOCH + time_ms * _MS
    digits = "milliseconds" if time_ms % 1000 else "seconds"
    return moment.isoformat(timespec=digits).replace("+00:00", "Z")


def cap_ms(hours: float) -> int:
    """A cap in hours as whole milliseconds, rounded down; read as the decimal that was written."""
    return floor(Fraction(repr(hours)) * HOUR_MS)


def duration_ms(hours: float) -> int:
    return ceil(Fraction(repr(hours)) * HOUR_MS)


def hours(amount_ms: int) -> float:
    """GPU-milliseconds as hours, such that reading it back as a cap gives at least as much."""
    value = amount_ms / HOUR_MS
    while cap_ms(value) < amount_ms:
        value = nextafter(value, float("inf"))
    return value


def parse_duration(text: str, path: str) -> int:
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise BadInput(path, f"must be a duration like 90m, 2h or 1h30m, got {text!r}")
    total = sum(
        int(number[:20]) * unit
        for number, unit in zip(match.groups(default="0"), _UNITS_MS.values(), strict=True)
    )
    if not 0 < total <= DURATION_MS_MAX:
        raise BadInput(path, f"must be more than 0 and at most 366d, got {text[:60]!r}")
    return total


def format_duration(amount_ms: int) -> str:
    """The same in the largest units that fit: `1h30m`."""
    parts = []
    for unit, unit_ms in _UNITS_MS.items():
        number, amount_ms = divmod(amount_ms, unit_ms)
        parts += [f"{number}{unit}"] if number else []
    return "".join(parts) or "0s"
