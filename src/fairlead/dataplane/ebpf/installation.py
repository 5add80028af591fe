"""Putting the programs into the kernel, finding them there again, and taking them out.

    PINS/live/map_*     the dataplane's memory
    PINS/live/prog_*    the programs; `agent` runs for the agent, the others for the cgroup
    PINS/live/link_*    what ties a program to the cgroup, with or without an agent

An installation is prepared in PINS/new and becomes PINS/live by one rename, so a half-made one is
never taken for whole. The agent that has it open holds a lock on PINS; kill -9 releases it.
"""

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS, HOLD_AFTER_MS
from fairlead.dataplane.ebpf import kernel, layout
from fairlead.host.files import try_lock
from fairlead.ports.dataplane import SCHEMA_VERSION
from fairlead.ports.faults import PermanentFault, TemporaryFault

# Program to the kernel's number of its hook (enum bpf_attach_type). Those that see the end of a
# connection come first, so that none begins whose end is not seen.
HOOKS = {
    **{"telemetry": 3, "release": 34},
    **{"connect4": 10, "connect6": 11, "sendmsg4": 14, "sendmsg6": 15},
    **{"recvmsg4": 19, "recvmsg6": 20, "getpeername4": 29, "getpeername6": 30},
}
AGENT = "agent"
_GROUP_MAPS = ("vips", "groups", "buckets", "group_counts", "insides", "relaxations")
_BACKEND_MAPS = ("backends", "healths", "backend_counts", "loads")
_SINGLE_MAPS = ("schema", "heartbeat", "tables", "replies", "origins", "barrier")
MAPS = (*_SINGLE_MAPS, *_GROUP_MAPS, *_BACKEND_MAPS)
_TEMPORARY = {errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EBUSY}


@contextlib.contextmanager
def as_faults(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        printed = error.printed.strip() if isinstance(error, kernel.BpfError) else ""
        place = f" ({error.filename})" if error.filename else ""
        message = f"{doing}: {error.strerror}{place}" + (f"\n{printed}" if printed else "")
        fault = TemporaryFault if error.errno in _TEMPORARY else PermanentFault
        raise fault(message) from error


class Installation:
    """One folder of pins, locked. `live` is what is in force, once `attach` has been called."""

    def __init__(self, pins: Path) -> None:
        self.pins, self.live = pins, pins / "live"
        with as_faults(f"{pins}: cannot be used"):
            pins.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = try_lock(pins)
        if self._lock is None:
            raise PermanentFault(f"{pins}: another agent has this dataplane open")

    def attach(
        self, cgroup: Path, program: Path, capacity: Mapping[str, int], soft_errno: int
    ) -> None:
        """Take over what is installed, or install it; afterwards it is attached to `cgroup`."""
        with as_faults(f"the eBPF dataplane in {self.pins} on {cgroup}"):
            directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if self.live.exists():
                    if self.schema_version() == SCHEMA_VERSION:
                        self._attach_hooks(self.live, directory)
                else:
                    self._install(directory, program, capacity, soft_errno)
            except BaseException:
                if not self.live.exists():
                    with contextlib.suppress(OSError):
                        _clear(self.pins / "new")
                        self.pins.rmdir()
                raise
            finally:
                os.close(directory)

    def schema_version(self) -> int:
        """Of the maps that are installed. This one map is the same in every version."""
        with kernel.opened(self.live / "map_schema") as descriptor:
            return int(_schema(descriptor)[0].value)

    def _install(
        self, directory: int, program: Path, capacity: Mapping[str, int], soft_errno: int
    ) -> None:
        fresh = self.pins / "new"
        _clear(fresh)
        fresh.mkdir(mode=0o700)
        library, path = kernel.libbpf(), str(program)
        handle = library.call("bpf_object__open_file", os.fsencode(path), None, what=path)
        try:
            _prepare(handle, capacity, soft_errno)
            library.call("bpf_object__load", handle, what=path)
            for name in MAPS:
                descriptor = library.call("bpf_map__fd", _map(handle, name))
                if name == "schema":
                    _schema(descriptor)[0] = ctypes.c_uint32(SCHEMA_VERSION)
                kernel.pin(descriptor, fresh / f"map_{name}")
            for name in (*HOOKS, AGENT):
                found = library.call("bpf_object__find_program_by_name", handle, name.encode())
                descriptor = library.call("bpf_program__fd", found)
                kernel.pin(descriptor, fresh / f"prog_{name}")
                if name == AGENT:  # the installing agent is alive
                    library.run(descriptor, layout.STRUCTURES["order"](kind=layout.Command.BEAT))
        finally:
            library.close_object(handle)
        self._attach_hooks(fresh, directory)
        fresh.rename(self.live)

    def _attach_hooks(self, folder: Path, directory: int) -> None:
        """Tie every program to the cgroup, unless it is: a cgroup that was removed and made again
        is another one, and its links are dead."""
        wanted = str(os.fstat(directory).st_ino)  # which is the cgroup's id
        loose = []
        for name in HOOKS:
            link = folder / f"link_{name}"
            if not link.exists() or _facts(link).get("cgroup_id") != wanted:
                loose.append(name)
                _cut(link)
        if loose and folder == self.live:
            self._forget()
        for name in loose:
            with kernel.opened(folder / f"prog_{name}") as program:
                arguments = (program, directory, HOOKS[name], None)
                tied = kernel.libbpf().call("bpf_link_create", *arguments, what=name)
            try:
                kernel.pin(tied, folder / f"link_{name}")
            finally:
                os.close(tied)

    def _forget(self) -> None:
        """Connections that live where no program is attached now end unseen: forget them."""
        with contextlib.closing(kernel.Maps(self.live)) as maps:
            maps.barrier()
            for place, backend in enumerate(maps.backends.first(maps.backends.entries)):
                if backend.group:
                    maps.forget(place)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        if self._lock is None:  # let go before: another agent may have it now
            if self.pins.exists():
                Installation(self.pins).remove()
            return
        with as_faults(f"{self.pins}: cannot be removed"):
            if self.pins.exists():
                _clear(self.live)
                _clear(self.pins / "new")
                self.pins.rmdir()
        self.close()


def _map(handle: int, name: str) -> int:
    return kernel.libbpf().call("bpf_object__find_map_by_name", handle, name.encode(), what=name)


def _prepare(handle: int, capacity: Mapping[str, int], soft_errno: int) -> None:
    groups, backends = capacity["groups"], capacity["backends"]
    if backends > layout.BACKENDS_MAX:
        problem = f"must be at most {layout.BACKENDS_MAX}, got {backends}"
        raise PermanentFault(f"capacity.backends: {problem}")
    library = kernel.libbpf()
    connections = 1 << (capacity["connections"] - 1).bit_length()
    sizes = {
        **dict.fromkeys(_GROUP_MAPS, groups),
        **dict.fromkeys(_BACKEND_MAPS, backends),
        "tables": 2 * groups,
        "origins": connections,
        "replies": capacity["replies"],
    }
    for name, entries in sizes.items():
        library.call("bpf_map__set_max_entries", _map(handle, name), entries)
    settings = layout.STRUCTURES["settings"](
        hold_after_ns=HOLD_AFTER_MS * 1_000_000,
        fallback_after_ns=FALLBACK_AFTER_MS * 1_000_000,
        errno_soft=soft_errno,
        errno_hard=errno.ECONNREFUSED,
        has_retval=library.has_helper(*kernel.SET_RETVAL),
        origins_mask=connections - 1,
    )
    value = ctypes.byref(settings), ctypes.sizeof(settings)
    library.call("bpf_map__set_initial_value", _map(handle, ".rodata"), *value)


def _schema(descriptor: int) -> kernel.BpfMap:
    return kernel.BpfMap("schema", descriptor, ctypes.c_uint32)


def _facts(link: Path) -> dict[str, str]:
    with kernel.opened(link) as descriptor:
        return kernel.facts(descriptor)


def _cut(link: Path) -> None:
    """Detach first: dropping the last reference would detach too, but some time later."""
    if not link.exists():
        return
    with kernel.opened(link) as descriptor:
        kernel.libbpf().call("bpf_link_detach", descriptor, what=str(link))
    link.unlink()


def _clear(folder: Path) -> None:
    if not folder.exists():
        return
    for link in sorted(folder.glob("link_*")):
        _cut(link)
    for path in sorted(folder.iterdir()):
        path.unlink()
    folder.rmdir()
