"""How the C library keeps memory: few pools, and large blocks given back."""

import ctypes

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Of glibc's `mallopt`."""


def keep_little() -> None:
    """For a process of many threads that must stay small. By default glibc gives each thread a pool
    of its own and keeps what was freed in it. Another C library is left as it is."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 2)
        library.mallopt(_MMAP_THRESHOLD, 128 * 1024)
    except (OSError, AttributeError):
        return
