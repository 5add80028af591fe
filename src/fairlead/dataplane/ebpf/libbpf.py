"""libbpf through ctypes: the two dozen functions that the plane needs, errors as `BpfError`.

Only libbpf 1.x, whose functions agree on how they fail. Handles are file descriptors wherever the
library lets us choose, because those are what gets pinned and what a crash gives back.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = "libbpf.so.1"
CGROUP_SOCK_ADDR = 18  # enum bpf_prog_type
SET_RETVAL = 187  # enum bpf_func_id
_MAP_TYPE_ARRAY = 2
_STATS_RUN_TIME = 0
_LOG_BYTES = 8192

_PRINTER = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)

# Name to result and arguments. Every pointer is opaque to us.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_set_print": (c_void_p, (_PRINTER,)),
    "libbpf_num_possible_cpus": (c_int, ()),
    "libbpf_probe_bpf_helper": (c_int, (c_int, c_int, c_void_p)),
    "bpf_object__open_file": (c_void_p, (c_char_p, c_void_p)),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__find_map_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_object__find_program_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32)),
    "bpf_map__set_initial_value": (c_int, (c_void_p, c_void_p, c_size_t)),
    "bpf_map__fd": (c_int, (c_void_p,)),
    "bpf_program__fd": (c_int, (c_void_p,)),
    "bpf_map_create": (c_int, (c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p)),
    "bpf_map_update_elem": (c_int, (c_int, c_void_p, c_void_p, c_uint64)),
    "bpf_map_lookup_elem": (c_int, (c_int, c_void_p, c_void_p)),
    "bpf_map_delete_elem": (c_int, (c_int, c_void_p)),
    "bpf_map_lookup_batch": (
        c_int,
        (c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "bpf_link_create": (c_int, (c_int, c_int, c_int, c_void_p)),
    "bpf_link_detach": (c_int, (c_int,)),
    "bpf_obj_pin": (c_int, (c_int, c_char_p)),
    "bpf_obj_get": (c_int, (c_char_p,)),
    "bpf_prog_test_run_opts": (c_int, (c_int, c_void_p)),
    "bpf_enable_stats": (c_int, (c_int,)),
}


class BpfError(OSError):
    """A call of libbpf failed; `said` holds what the library or the verifier printed."""

    def __init__(self, number: int, what: str, said: str = "") -> None:
        super().__init__(number, os.strerror(number), what)
        self.said = said


class RunOptions(ctypes.Structure):
    """`struct bpf_test_run_opts`; a `syscall` program takes its context and nothing else."""

    _fields_ = [
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    ]


class Libbpf:
    """The library. Get it by `libbpf()`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY, use_errno=True)
        libc = ctypes.CDLL(None)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._said: list[str] = []

        def hear(level: int, template: bytes, arguments: int) -> int:
            text = ctypes.create_string_buffer(_LOG_BYTES)
            libc.vsnprintf(text, c_size_t(_LOG_BYTES), c_char_p(template), c_void_p(arguments))
            if level < 2:  # warnings and information; the rest is about libbpf itself
                self._said.append(text.value.decode(errors="replace"))
            return 0

        # Kept as long as the library may call it. It must not print: stderr is the agent's.
        self._hear = _PRINTER(hear)
        self._library.libbpf_set_print(self._hear)

    def call(self, name: str, *arguments: object, what: str = "") -> int:
        """Call a function that says its error by a negative number or a null pointer."""
        self._said.clear()
        function = getattr(self._library, name)
        result = function(*arguments)
        if result is None or result < 0:
            # A number is the negated errno itself; a null pointer leaves it behind.
            number = -result if result else ctypes.get_errno()
            raise BpfError(number, f"{name} {what}".strip(), "".join(self._said))
        return int(result)

    def close_object(self, handle: int) -> None:
        """Give an object back; what was pinned of it stays."""
        self._library.bpf_object__close(handle)

    @property
    def possible_cpus(self) -> int:
        """How many values a per-CPU map has for each key."""
        return self.call("libbpf_num_possible_cpus")

    def has_helper(self, program_type: int, helper: int) -> bool:
        """Whether the running kernel lets programs of that type call the helper."""
        return self.call("libbpf_probe_bpf_helper", program_type, helper, None) == 1

    def may_make_maps(self) -> None:
        """Raises BpfError where this process may not use bpf(2)."""
        os.close(self.call("bpf_map_create", _MAP_TYPE_ARRAY, b"fairlead_probe", 4, 4, 1, None))

    def run(self, program: int, context: ctypes.Structure) -> int:
        """Run a `syscall` program once; it may change the context."""
        options = RunOptions(sz=ctypes.sizeof(RunOptions))
        options.ctx_in = ctypes.addressof(context)
        options.ctx_size_in = ctypes.sizeof(context)
        self.call("bpf_prog_test_run_opts", program, byref(options))
        return int(options.retval)

    @contextlib.contextmanager
    def statistics(self) -> Iterator[None]:
        """While inside, the kernel times every run of every program (about 20 ns a run)."""
        descriptor = self.call("bpf_enable_stats", _STATS_RUN_TIME)
        try:
            yield
        finally:
            os.close(descriptor)


@cache
def libbpf() -> Libbpf:
    """The library, loaded once; OSError where it is not installed."""
    return Libbpf()


def facts(descriptor: int) -> dict[str, str]:
    """What the kernel tells of a map, program or link: its `fdinfo`."""
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))


def pin(descriptor: int, path: Path) -> None:
    """Give it a name that outlives the process."""
    libbpf().call("bpf_obj_pin", descriptor, os.fsencode(path), what=str(path))


def pinned(path: Path) -> int:
    """Open what is pinned there."""
    return libbpf().call("bpf_obj_get", os.fsencode(path), what=str(path))
