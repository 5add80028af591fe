"""The signature of a notice, made here and checked by receivers.

    Fairlead-Id: 5f0c…              the same for every attempt at one notice
    Fairlead-Timestamp: 1767225600  seconds since 1970, of this attempt
    Fairlead-Signature: v1=…        HMAC-SHA256(secret, id "." timestamp "." body), hex

A receiver that also refuses old timestamps and repeated ids cannot be fooled by a recording.
"""

import hmac
from collections.abc import Mapping

ID, TIMESTAMP, SIGNATURE = "Fairlead-Id", "Fairlead-Timestamp", "Fairlead-Signature"
WINDOW_S = 300


def sign(secret: bytes, notice_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    return {
        ID: notice_id,
        TIMESTAMP: str(timestamp_s),
        SIGNATURE: f"v1={_code(secret, notice_id, str(timestamp_s), body)}",
    }


def _code(secret: bytes, notice_id: str, timestamp: str, body: bytes) -> str:
    message = f"{notice_id}.{timestamp}.".encode() + body
    return hmac.new(secret, message, "sha256").hexdigest()


class ReplayGuard:
    """A receiver's side: whether a message is one of ours, is new, and is of now."""

    def __init__(self, secret: bytes, window_s: int = WINDOW_S) -> None:
        self._secret, self._window_s = secret, window_s
        self._seen: dict[str, float] = {}

    def problem(self, headers: Mapping[str, str], body: bytes, now_s: float) -> str | None:
        """What is wrong with a message; None: take it. A second time the same is wrong too."""
        given = {name.lower(): value for name, value in headers.items()}
        notice_id, stamp = given.get(ID.lower(), ""), given.get(TIMESTAMP.lower(), "")
        expected = f"v1={_code(self._secret, notice_id, stamp, body)}"
        if not hmac.compare_digest(given.get(SIGNATURE.lower(), "").encode(), expected.encode()):
            return "the signature does not hold"
        if not (stamp.isascii() and stamp.isdigit()) or abs(now_s - int(stamp)) > self._window_s:
            return "it is not of now"
        self._seen = {name: until for name, until in self._seen.items() if until > now_s}
        if notice_id in self._seen:
            return "it was received before"
        # Its timestamp may lie a window ahead of our clock, and holds for a window after that.
        self._seen[notice_id] = now_s + 2 * self._window_s
        return None
