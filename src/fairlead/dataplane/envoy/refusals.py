"""How clients are told no: the door's answers, and that of a group that is full."""

from fairlead.dataplane.envoy.files import Document
from fairlead.ports.dataplane import Mode

STATUS = {"soft": 429, "hard": 503}


def body(mode: str) -> Document:
    """What people read."""
    return {"inline_string": f"refused by fairlead: {mode}"}


def headers(mode: str, retry_s: int) -> list[Document]:
    """What programs read."""
    told = {"Fairlead-Refused": mode}
    if mode == Mode.SOFT:
        told["Retry-After"] = str(retry_s)
    return [{"header": {"key": key, "value": value}} for key, value in told.items()]
