"""The second kind of "no": something outside failed. Only adapters raise these, cause chained."""


class Fault(Exception):
    """The world did not do what was asked."""


class TemporaryFault(Fault):
    """Trying again may help, not before `retry_after_ms`."""

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class PermanentFault(Fault):
    """Trying again will not help."""
