"""Which error rate counts: raw from 20 requests on, below that only what the few requests prove.

One failure of one request is 100 %, and means nothing. A backend without any requests (it was just
drained, say) keeps its last counted rate for 5 s: silence is not health.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Backend
from fairlead.core.traffic.signals import wilson_lower
from fairlead.core.traffic.state import BackendMemory


class Counted(NamedTuple):
    """The rate that counts now (None: missing), and what to remember of it."""

    rate: float | None
    kept_rate: float | None
    kept_ms: int | None


def count_errors(
    backends: Sequence[Backend], memories: Sequence[BackendMemory], clock_ms: int, config: Config
) -> list[Counted]:
    """Every backend's rate, in the order of the backends."""
    return [
        count(backend, memory, clock_ms, config)
        for backend, memory in zip(backends, memories, strict=True)
    ]


def count(backend: Backend, memory: BackendMemory, clock_ms: int, config: Config) -> Counted:
    """One backend's rate. Without a rate or a volume there is no evidence at all: missing.

    Of no requests at all many a sensor says null rather than 0; what is remembered answers both.
    """
    rate, requests = backend.error_rate, backend.requests
    kept = Counted(memory.error_rate, memory.error_rate, memory.error_ms)
    if requests == 0 and memory.error_ms is not None:
        if clock_ms - memory.error_ms <= config.error_keep_ms:
            return kept
        kept = Counted(None, None, None)
    if rate is None or requests is None:
        return kept._replace(rate=None)
    if not requests:
        return Counted(0.0, None, None)
    enough = requests >= config.error_requests_min
    counted = rate if enough else wilson_lower(rate, requests, config.wilson_z)
    return Counted(counted, counted, clock_ms)
