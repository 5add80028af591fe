"""Programs of others on the same cgroup: they get what they asked the kernel for, and we too."""

import ctypes
import os
from importlib import import_module
from pathlib import Path

import pytest

from fairlead.dataplane.ebpf.kernel import BpfMap, libbpf
from tests.dataplane.ebpf.places import Place, Talker, group

pytestmark = pytest.mark.component("ebpf")
VIP = "127.99.0.1"
SOCK_OPS = 3  # enum bpf_attach_type
RTO_CB_FLAG = 1
# Asks to be told of retransmission timeouts, and notes what is left of that after the handshake.
SOURCE = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

SEC("sockops")
int neighbour(struct bpf_sock_ops *ctx)
{
	__u32 only = 0;
	__u64 flags = ctx->bpf_sock_ops_cb_flags;

	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		bpf_sock_ops_cb_flags_set(ctx, flags | BPF_SOCK_OPS_RTO_CB_FLAG);
	if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		bpf_map_update_elem(&seen, &only, &flags, BPF_ANY);
	return 1;
}

char _license[] SEC("license") = "GPL";
"""


def test_what_others_asked_of_a_socket_stays(
    place: Place, client: Talker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that was there before us still has its callback, and we have ours."""
    building = import_module("fairlead.dataplane.ebpf.toolchain")
    (tmp_path / "neighbour.bpf.c").write_text(SOURCE)
    monkeypatch.setattr(building, "SOURCES", tmp_path)
    monkeypatch.setattr(building, "MAIN", "neighbour.bpf.c")
    program = building.build(tmp_path / "neighbour.o")
    monkeypatch.undo()
    library = libbpf()
    handle = library.call("bpf_object__open_file", os.fsencode(program), None)
    cgroup = os.open(place.cgroup, os.O_RDONLY | os.O_DIRECTORY)
    link = -1
    try:
        library.call("bpf_object__load", handle)
        found = library.call("bpf_object__find_program_by_name", handle, b"neighbour")
        descriptor = library.call("bpf_program__fd", found)
        link = library.call("bpf_link_create", descriptor, cgroup, SOCK_OPS, None)
        made = library.call("bpf_object__find_map_by_name", handle, b"seen")
        seen = BpfMap("seen", library.call("bpf_map__fd", made), ctypes.c_uint64)
        plane = place.plane()  # after the other, so that it has the last word
        plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
        assert client.do("tcp", host=VIP, port=80) == ["0"]
        assert seen[0].value & RTO_CB_FLAG
        assert seen[0].value != RTO_CB_FLAG
        plane.detach()
    finally:
        for each in (link, cgroup):
            if each >= 0:
                os.close(each)
        library.close_object(handle)
