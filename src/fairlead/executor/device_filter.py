"""The device filter: which NVIDIA devices the processes of a cgroup may open, held by the kernel.

With cgroup v2 a program of type CGROUP_DEVICE, written here instruction by instruction from the
list of devices that are allowed, loaded by the bpf system call and attached to the job's cgroup.
With cgroup v1 the `devices` controller. Either way only character devices of NVIDIA's major number
are looked at: its control nodes stay open to all, and what is no GPU is not touched. What was
opened before stays open. Standard library only: the shim uses it.
"""

import os
import struct
from collections.abc import Collection

MAJOR = 195
"""Of /dev/nvidia0, nvidia1 and so on, since the first driver for Linux."""
CONTROL_MINORS = (254, 255)
"""nvidia-modeset and nvidiactl. nvidia-uvm and nvidia-caps have major numbers of their own."""
_MINORS = range(CONTROL_MINORS[0])
_BPF = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH = 5, 8
_PROG_TYPE, _ATTACH_TYPE = 15, 6  # BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE
_CHARACTER = 2
_ATTR_BYTES, _LOG_BYTES = 128, 4096


def program(minors: Collection[int]) -> bytes:
    """The filter for some devices: r0 is 1 (allowed) or 0."""
    allowed = sorted({*minors, *CONTROL_MINORS})
    length = 6 + len(allowed) + 4
    code = [
        _instruction(0x61, 2, 1, offset=0),  # r2 = ctx->access_type
        _instruction(0x54, 2, value=0xFFFF),  # its lower half is the type
        _instruction(0x55, 2, offset=length - 2 - 3, value=_CHARACTER),  # no character device
        _instruction(0x61, 2, 1, offset=4),  # r2 = ctx->major
        _instruction(0x55, 2, offset=length - 2 - 5, value=MAJOR),
        _instruction(0x61, 2, 1, offset=8),  # r2 = ctx->minor
    ]
    for number, minor in enumerate(allowed, start=7):
        code.append(_instruction(0x15, 2, offset=length - 2 - number, value=minor))
    for answer in (0, 1):
        code += [_instruction(0xB7, 0, value=answer), _instruction(0x95)]
    return b"".join(code)


def _instruction(
    code: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0
) -> bytes:
    return struct.pack("<BBhi", code, target | source << 4, offset, value)


def attach(cgroup: str, minors: Collection[int]) -> None:
    """Let the processes below a v2 cgroup open these devices of NVIDIA and no others.

    It replaces the filter that was there in one step, and none below it can widen it. Raises
    OSError.
    """
    code = program(minors)
    descriptor = _load(code)
    folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _bpf(_ATTACH, struct.pack("=IIII", folder, descriptor, _ATTACH_TYPE, 0))
    finally:
        os.close(folder)
        os.close(descriptor)


def _load(code: bytes) -> int:
    import ctypes  # noqa: PLC0415 - it costs a megabyte

    instructions, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    places = [ctypes.addressof(place) for place in (instructions, licence, log)]
    count = len(code) // 8
    return _bpf(
        _LOAD, struct.pack("=IIQQIIQ", _PROG_TYPE, count, *places[:2], 1, _LOG_BYTES, places[2])
    )


def _bpf(command: int, attributes: bytes) -> int:
    import ctypes  # noqa: PLC0415 - it costs a megabyte

    number = _BPF.get(os.uname().machine)
    if number is None:
        raise OSError(0, f"no bpf system call is known for {os.uname().machine}")
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, _ATTR_BYTES)
    found = library.syscall(number, command, buffer, _ATTR_BYTES)
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf: {os.strerror(code)}")
    return int(found)


def write_v1(cgroup: str, minors: Collection[int]) -> None:
    """The same by the `devices` controller of cgroup v1. What is allowed comes first, so that a
    process inside loses nothing that it keeps."""
    kept = {*minors, *CONTROL_MINORS}
    for name, chosen in (("allow", kept), ("deny", set(_MINORS) - kept)):
        descriptor = os.open(f"{cgroup}/devices.{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for minor in sorted(chosen):
                os.write(descriptor, f"c {MAJOR}:{minor} rwm".encode())
        finally:
            os.close(descriptor)


def why_not(cgroup: str, *, unified: bool) -> str | None:
    """Why there can be no filter on a cgroup, which is tried; None: there can be."""
    try:
        (attach if unified else write_v1)(cgroup, ())
    except OSError as error:
        return error.strerror or str(error)
    return None
