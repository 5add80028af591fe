"""NVIDIA's management library through ctypes: how many devices, which, how large.

Only the functions that every driver since 2012 has, so nothing here depends on a version.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES, _NAME_BYTES = 96, 96
_DEVICES_MAX = 1024


class NvmlUnavailable(Exception):
    """NVML is not there, or does not answer; the message says which and why."""


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class Nvml:
    """An initialised library. Open it with `nvml()`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def count(self) -> int:
        """How many devices the driver has."""
        found = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(found))
        if found.value > _DEVICES_MAX:
            raise NvmlUnavailable(f"nvmlDeviceGetCount_v2: {found.value} devices cannot be true")
        return found.value

    def device(self, ordinal: int) -> ctypes.c_void_p:
        """The handle of a device, in bus order."""
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(ordinal), ctypes.byref(handle))
        return handle

    def uuid(self, handle: ctypes.c_void_p) -> str:
        """`GPU-…`, which CUDA_VISIBLE_DEVICES accepts and which survives a reboot."""
        return self._text("nvmlDeviceGetUUID", handle, _UUID_BYTES)

    def name(self, handle: ctypes.c_void_p) -> str:
        """The product's name."""
        return self._text("nvmlDeviceGetName", handle, _NAME_BYTES)

    def memory_bytes(self, handle: ctypes.c_void_p) -> int:
        """All of its memory."""
        memory = _Memory()
        self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return int(memory.total)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; any answer but success is NvmlUnavailable in NVML's own words."""
        try:
            answer = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NvmlUnavailable(f"{LIBRARY} has no {name}") from None
        if answer:
            raise NvmlUnavailable(f"{name}: {self._error(answer)}")

    def _text(self, name: str, handle: ctypes.c_void_p, size: int) -> str:
        buffer = ctypes.create_string_buffer(size)
        self.call(name, handle, buffer, ctypes.c_uint(size))
        return buffer.value.decode("utf-8", "replace")

    def _error(self, answer: int) -> str:
        try:
            say = self._library.nvmlErrorString
        except AttributeError:
            return f"error {answer}"
        say.restype = ctypes.c_char_p
        words = say(answer)
        return f"{words.decode('utf-8', 'replace') if words else 'error'} ({answer})"


@contextmanager
def nvml(library: str = LIBRARY) -> Iterator[Nvml]:
    """NVML, initialised, and shut down afterwards."""
    try:
        opened = Nvml(ctypes.CDLL(library))
    except OSError as error:
        raise NvmlUnavailable(f"{library} cannot be loaded: {error}") from error
    opened.call("nvmlInit_v2")
    try:
        yield opened
    finally:
        opened.call("nvmlShutdown")
