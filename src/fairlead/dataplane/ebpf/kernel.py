"""The kernel's side: libbpf through ctypes, errors as `BpfError`, and maps with typed values.

Only libbpf 1.x, whose functions agree on how they fail. Handles are file descriptors wherever the
library lets us choose, because those are what gets pinned and what a crash gives back.
"""

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from fairlead.dataplane.ebpf import layout
from fairlead.ports.faults import PermanentFault

LIBRARY = "libbpf.so.1"
SET_RETVAL = 18, 187  # for cgroup_sock_addr programs: enum bpf_prog_type, enum bpf_func_id
_MAP_TYPE_ARRAY = 2
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
    "bpf_map_lookup_batch": (c_int, (c_int, *(c_void_p,) * 6)),
    "bpf_link_create": (c_int, (c_int, c_int, c_int, c_void_p)),
    "bpf_link_detach": (c_int, (c_int,)),
    "bpf_obj_pin": (c_int, (c_int, c_char_p)),
    "bpf_obj_get": (c_int, (c_char_p,)),
    "bpf_prog_test_run_opts": (c_int, (c_int, c_void_p)),
    "bpf_enable_stats": (c_int, (c_int,)),
}


class BpfError(OSError):
    """A call of libbpf failed; `printed` holds what the library or the verifier printed."""

    def __init__(self, number: int, what: str, printed: str = "") -> None:
        super().__init__(number, os.strerror(number), what)
        self.printed = printed


class Absent(BpfError):
    """There is no such entry."""


class RunOptions(ctypes.Structure):
    """`struct bpf_test_run_opts`; a `syscall` program takes its context and nothing else."""

    _fields_ = [
        ("sz", c_size_t),
        *((name, c_void_p) for name in ("data_in", "data_out")),
        *((name, c_uint32) for name in ("data_size_in", "data_size_out")),
        *((name, c_void_p) for name in ("ctx_in", "ctx_out")),
        *((name, c_uint32) for name in ("ctx_size_in", "ctx_size_out", "retval")),
        ("repeat", c_int),
        *((name, c_uint32) for name in ("duration", "flags", "cpu", "batch_size")),
    ]


class Libbpf:
    """The library. Get it by `libbpf()`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY, use_errno=True)
        libc = ctypes.CDLL(None)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._printed: list[str] = []

        def collect(level: int, template: bytes, arguments: int) -> int:
            text = ctypes.create_string_buffer(_LOG_BYTES)
            libc.vsnprintf(text, c_size_t(_LOG_BYTES), c_char_p(template), c_void_p(arguments))
            if level < 2:  # warnings and information; the rest is about libbpf itself
                self._printed.append(text.value.decode(errors="replace"))
            return 0

        # Kept as long as the library may call it. It must not print: stderr is the agent's.
        self._collect = _PRINTER(collect)
        self._library.libbpf_set_print(self._collect)

    def call(self, name: str, *arguments: object, what: str = "") -> int:
        """Call a function that says its error by a negative number or a null pointer."""
        self._printed.clear()
        function = getattr(self._library, name)
        result = function(*arguments)
        if result is None or result < 0:
            # A number is the negated errno itself; a null pointer leaves it behind.
            number = -result if result else ctypes.get_errno()
            kind = Absent if number == errno.ENOENT else BpfError
            raise kind(number, f"{name} {what}".strip(), "".join(self._printed))
        return int(result)

    def close_object(self, handle: int) -> None:
        """Give an object back; what was pinned of it stays."""
        self._library.bpf_object__close(handle)

    def has_helper(self, program_type: int, helper: int) -> bool:
        return self.call("libbpf_probe_bpf_helper", program_type, helper, None) == 1

    def may_make_maps(self) -> None:
        os.close(self.call("bpf_map_create", _MAP_TYPE_ARRAY, b"fairlead_probe", 4, 4, 1, None))

    def run(self, program: int, context: ctypes.Structure) -> int:
        """Run a `syscall` program once; it may change the context."""
        options = RunOptions(sz=ctypes.sizeof(RunOptions))
        options.ctx_in = ctypes.addressof(context)
        options.ctx_size_in = ctypes.sizeof(context)
        self.call("bpf_prog_test_run_opts", program, byref(options))
        return int(options.retval)


@cache
def libbpf() -> Libbpf:
    """The library, loaded once; OSError where it is not installed."""
    return Libbpf()


def facts(descriptor: int) -> dict[str, str]:
    """What the kernel tells of a map, program or link: its `fdinfo`."""
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))


def pin(descriptor: int, path: Path) -> None:
    libbpf().call("bpf_obj_pin", descriptor, os.fsencode(path), what=str(path))


def pinned(path: Path) -> int:
    return libbpf().call("bpf_obj_get", os.fsencode(path), what=str(path))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = pinned(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class BpfMap:
    """One open map: `map[3]` is a copy of its value, `map[3] = value` writes it."""

    def __init__(self, name: str, descriptor: int, value: Any, key: Any = c_uint32) -> None:
        self.name, self.descriptor = name, descriptor
        self._value, self._key = value, key
        known = facts(descriptor)
        self.entries = int(known["max_entries"])
        sizes = int(known["key_size"]), int(known["value_size"])
        wanted = ctypes.sizeof(key), ctypes.sizeof(value)
        if sizes != wanted:
            raise PermanentFault(
                f"map {name}: keys and values of {sizes} bytes where this release has {wanted}"
            )

    def __getitem__(self, key: object) -> Any:
        value = self._value()
        self._call("bpf_map_lookup_elem", key, byref(value))
        return value

    def __setitem__(self, key: object, value: Any) -> None:
        self._call("bpf_map_update_elem", key, byref(value), 0)

    def discard(self, key: object) -> None:
        """Delete the entry if it is there (hash maps only)."""
        with contextlib.suppress(Absent):
            self._call("bpf_map_delete_elem", key)

    def first(self, count: int) -> list[Any]:
        """The values of the keys 0 to `count` - 1, in one call (arrays only)."""
        values = (self._value * count)()
        self._read_batch(count, values)
        return list(values)

    def _read_batch(self, count: int, values: object) -> None:
        """The kernel says ENOENT when it came to the end of the map, with all values in place."""
        if count == 0:
            return
        keys, batch, found = (c_uint32 * count)(), c_uint32(), c_uint32(count)
        arguments = (None, byref(batch), byref(keys), values, byref(found), None)
        with contextlib.suppress(Absent):
            libbpf().call("bpf_map_lookup_batch", self.descriptor, *arguments, what=self.name)

    def _call(self, function: str, key: object, *more: object) -> None:
        raw = key if isinstance(key, ctypes.Structure) else self._key(key)
        libbpf().call(function, self.descriptor, byref(raw), *more, what=self.name)


class PerCpuMap(BpfMap):
    """An array with one value of 64-bit counters per key and CPU. What counts is the sum."""

    def __init__(self, name: str, descriptor: int, value: Any) -> None:
        super().__init__(name, descriptor, value)
        self._cpus = libbpf().call("libbpf_num_possible_cpus")
        self._fields = ctypes.sizeof(value) // 8

    def sums(self, count: int) -> Iterator[list[int]]:
        """The counters of the keys 0 to `count` - 1, summed over the CPUs."""
        values = (ctypes.c_uint64 * (count * self._cpus * self._fields))()
        self._read_batch(count, values)
        width = self._cpus * self._fields
        for start in range(0, count * width, width):
            mine = values[start : start + width]
            yield [sum(mine[field :: self._fields]) for field in range(self._fields)]

    def clear(self, key: int) -> None:
        zeros = (self._value * self._cpus)()
        self._call("bpf_map_update_elem", key, byref(zeros), 0)


class Maps:
    """Every map that the agent needs, and the program that takes its commands."""

    def __init__(self, live: Path) -> None:
        self._descriptors: list[int] = []

        def found(name: str) -> tuple[str, int]:
            self._descriptors.append(pinned(live / f"map_{name}"))
            return name, self._descriptors[-1]

        try:
            self._agent = pinned(live / "prog_agent")
            self._descriptors.append(self._agent)
            values = layout.STRUCTURES
            self.heartbeat = BpfMap(*found("heartbeat"), c_uint64)
            self.vips = BpfMap(*found("vips"), c_uint32, values["tuple"])
            self.groups = BpfMap(*found("groups"), values["group"])
            self.tables = BpfMap(*found("tables"), values["table"])
            self.buckets = BpfMap(*found("buckets"), values["bucket"])
            self.group_counts = PerCpuMap(*found("group_counts"), values["group_count"])
            self.backends = BpfMap(*found("backends"), values["backend"])
            self.healths = BpfMap(*found("healths"), values["health"])
            self.backend_counts = PerCpuMap(*found("backend_counts"), values["backend_count"])
            self.loads = BpfMap(*found("loads"), values["load"])
            self._barrier = BpfMap(*found("barrier"), c_uint32)
        except BaseException:
            self.close()
            raise

    def command(
        self, kind: layout.Command, group: int = 0, *, expected: int = 0, word: int = 0
    ) -> tuple[layout.HookAnswer, int]:
        order = layout.STRUCTURES["order"]
        block = order(kind=kind, group=group, expected=expected, word=word)
        answer = libbpf().run(self._agent, block)
        return layout.HookAnswer(answer), block.word

    def forget(self, backend: int) -> None:
        """From now on the connections of the backend in this place count no more; nothing may lead
        to it. The kernel does it, because it counts meanwhile."""
        self.command(layout.Command.FORGET, word=backend)

    def barrier(self) -> None:
        """Wait until every program that runs now has ended: replacing a map inside a map does that,
        by which other map does not matter."""
        self._barrier[0] = c_uint32(self.heartbeat.descriptor)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
