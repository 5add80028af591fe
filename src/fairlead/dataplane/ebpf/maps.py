"""Maps of the kernel with typed values. All methods raise BpfError as the kernel does."""

import ctypes
import errno
import os
from collections.abc import Iterator
from ctypes import byref, c_uint32, c_uint64
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from fairlead.dataplane.ebpf import layout
from fairlead.dataplane.ebpf.libbpf import BpfError, facts, libbpf, pinned
from fairlead.ports.faults import PermanentFault

Value = TypeVar("Value", bound="ctypes.Structure | ctypes._SimpleCData[int]")


class BpfMap(Generic[Value]):
    """One open map: `map[3]` is a copy of its value, `map[3] = value` writes it."""

    def __init__(self, name: str, descriptor: int, value: type[Value], key: Any = c_uint32) -> None:
        self.name, self.descriptor = name, descriptor
        self._value, self._key = value, key
        told = facts(descriptor)
        self.entries = int(told["max_entries"])
        found = int(told["key_size"]), int(told["value_size"])
        wanted = ctypes.sizeof(key), ctypes.sizeof(value)
        if found != wanted:
            raise PermanentFault(
                f"map {name}: keys and values of {found} bytes where this release has {wanted}"
            )

    def __getitem__(self, key: object) -> Value:
        value = self._value()
        self._call("bpf_map_lookup_elem", key, byref(value))
        return value

    def __setitem__(self, key: object, value: Value) -> None:
        self._call("bpf_map_update_elem", key, byref(value), 0)

    def __delitem__(self, key: object) -> None:
        self._call("bpf_map_delete_elem", key)

    def discard(self, key: object) -> None:
        """Delete the entry if it is there (hash maps only)."""
        try:
            del self[key]
        except BpfError as error:
            if error.errno != errno.ENOENT:
                raise

    def first(self, count: int) -> list[Value]:
        """The values of the keys 0 to `count` - 1, in one call (arrays only)."""
        values = (self._value * count)()
        self._read_batch(count, values)
        return cast(list[Value], list(values))

    def _read_batch(self, count: int, values: object) -> None:
        """The kernel says ENOENT when it came to the end of the map, with all values in place."""
        if count == 0:
            return
        keys, batch, found = (c_uint32 * count)(), c_uint32(), c_uint32(count)
        try:
            libbpf().call(
                "bpf_map_lookup_batch",
                self.descriptor,
                None,
                byref(batch),
                byref(keys),
                values,
                byref(found),
                None,
                what=self.name,
            )
        except BpfError as error:
            if error.errno != errno.ENOENT:
                raise

    def _call(self, function: str, key: object, *more: object) -> None:
        raw = key if isinstance(key, ctypes.Structure) else self._key(key)
        libbpf().call(function, self.descriptor, byref(raw), *more, what=self.name)


class PerCpuMap(BpfMap[Value]):
    """An array with one value of 64-bit counters per key and CPU. What counts is the sum."""

    def __init__(self, name: str, descriptor: int, value: type[Value]) -> None:
        super().__init__(name, descriptor, value)
        self._cpus = libbpf().possible_cpus
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
        """All CPUs to zero."""
        zeros = (self._value * self._cpus)()
        self._call("bpf_map_update_elem", key, byref(zeros), 0)


class Maps:
    """Every map of an installation that the agent needs, and the program that takes its orders."""

    def __init__(self, live: Path) -> None:
        self._descriptors: list[int] = []

        def opened(name: str) -> int:
            self._descriptors.append(pinned(live / name))
            return self._descriptors[-1]

        try:
            self._agent = opened("prog_agent")
            self.heartbeat = BpfMap("heartbeat", opened("map_heartbeat"), c_uint64)
            self.vips = BpfMap("vips", opened("map_vips"), c_uint32, layout.Tuple)
            self.groups = BpfMap("groups", opened("map_groups"), layout.Group)
            self.tables = BpfMap("tables", opened("map_tables"), layout.Table)
            self.buckets = BpfMap("buckets", opened("map_buckets"), layout.Bucket)
            self.group_counts = PerCpuMap(
                "group_counts", opened("map_group_counts"), layout.GroupCount
            )
            self.backends = BpfMap("backends", opened("map_backends"), layout.Backend)
            self.healths = BpfMap("healths", opened("map_healths"), layout.Health)
            self.backend_counts = PerCpuMap(
                "backend_counts", opened("map_backend_counts"), layout.BackendCount
            )
            self.loads = BpfMap("loads", opened("map_loads"), layout.Load)
            self._barrier = BpfMap("barrier", opened("map_barrier"), c_uint32)
        except BaseException:
            self.close()
            raise

    def order(
        self, kind: layout.Order, group: int = 0, *, expected: int = 0, word: int = 0
    ) -> tuple[layout.Answer, int]:
        """Ask the kernel: its answer, and the word as it left it."""
        sheet = layout.OrderSheet(kind=kind, group=group, expected=expected, word=word)
        answer = libbpf().run(self._agent, sheet)
        return layout.Answer(answer), sheet.word

    def forget(self, backend: int) -> None:
        """From now on the connections of whoever has this place count no more.

        The kernel does it, because it counts meanwhile. Nobody may be on the way to the place.
        """
        self.order(layout.Order.FORGET, word=backend)

    def barrier(self) -> None:
        """Wait until every program that is running now has ended.

        Replacing a map inside a map does that, by which other map does not matter.
        """
        self._barrier[0] = c_uint32(self.heartbeat.descriptor)

    def close(self) -> None:
        """Give the descriptors back."""
        while self._descriptors:
            os.close(self._descriptors.pop())
