"""Where state and caches live: machine-wide for root, the XDG directories for other users."""

import os
from pathlib import Path


def state_directory() -> Path:
    """$FAIRLEAD_STATE, else the default: the control plane keeps its ledger and socket here, and
    each agent its state in a folder of its own."""
    given = os.environ.get("FAIRLEAD_STATE")
    return Path(given) if given else default_state_directory()


def default_state_directory() -> Path:
    """/var/lib for root, the user's XDG state directory otherwise."""
    return Path("/var/lib/fairlead") if os.geteuid() == 0 else user_state_directory()


def user_state_directory() -> Path:
    """The user's own, also for root: what belongs to a person and not to the machine."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_directory() -> Path:
    """/var/cache for root, so that root loads only what root wrote; else the XDG cache."""
    return Path("/var/cache/fairlead") if os.geteuid() == 0 else user_cache_directory()


def user_cache_directory() -> Path:
    """The user's own, also for root: large, and made again where it is missing."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def _xdg(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    # The XDG specification says that a relative path is to be ignored.
    return (Path(given) if given.startswith("/") else Path.home() / default) / "fairlead"
