"""Canonical text of values of core, by way of msgspec: what an agent records five times a second.

    rendered(sighting) == text(plain(sighting))       # the same bytes, some ten times as fast

What msgspec may write otherwise than RFC 8785 has it (integers beyond 2^53, keys beyond the
plane of most characters) is left to `core.canonical`, and so is what has no form at all.
"""

import re

import msgspec

from fairlead.core.canonical import Rendered, number, text

# In order, it refuses keys that are no strings. Not `sorted`: msgspec would let go of a field's
# value before it writes it, and what a compiled value holds unboxed is made with every read.
_packer, _encoder = msgspec.msgpack.Encoder(order="deterministic"), msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")  # of what was read back: it has no fields
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""Infinity or NaN as msgpack has it; in JSON they would become null. May find other things, too."""
_UNSURE = re.compile(rb"[:,\[]-?(?:\d{17}|9\d{15})|[\xee-\xf7]")


def _number(written: str) -> float | msgspec.Raw:
    """1.0 is written as 1, and exponents are the other form's own."""
    if written.endswith(".0"):
        return int(written[:-2])
    value = float(written)
    return msgspec.Raw(number(value).encode()) if "e" in written else value


_decoder = msgspec.json.Decoder(float_hook=_number)


def rendered(value: object) -> Rendered:
    """`NotCanonical` for what JSON cannot carry exactly."""
    packed = _packer.encode(value)
    if not _NOT_FINITE.search(packed):
        written = _sorted.encode(_decoder.decode(_encoder.encode(value)))
        if not _UNSURE.search(written):
            return Rendered(written.decode())
    return Rendered(text(msgspec.msgpack.decode(packed)))
