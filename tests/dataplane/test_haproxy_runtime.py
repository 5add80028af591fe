"""The runtime socket of a HAProxy that dies while it answers: never a list without entries."""

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.dataplane.haproxy import HaproxyDataplane
from fairlead.dataplane.haproxy.config import HaproxyFiles
from fairlead.dataplane.haproxy.runtime import HaproxyLog, ask, execute
from fairlead.ports.dataplane import Backend, Proto, RouteGroup
from fairlead.ports.faults import PermanentFault, TemporaryFault
from tests.dataplane.proxy_worlds import HaproxyWorld
from tests.dataplane.tables import opened, table

GROUP = RouteGroup("web", "127.0.0.1", 80, Proto.TCP, (Backend("b1", "127.0.0.1", 81),))


@contextmanager
def dying(answer: bytes) -> Iterator[Path]:
    """A socket at which everybody gets this much of an answer, and then nothing."""
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        path = HaproxyFiles(Path(folder)).socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(path))
            server.listen()

            def serve() -> None:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        asked = b""
                        while b"\n" not in asked:
                            asked += connection.recv(1 << 16)
                        if asked == b"enough\n":
                            return
                        connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield path
            finally:
                ask(path, "enough", ends=False)
                thread.join()


@pytest.mark.parametrize("answer", [b"", b"# pxname,svna", b"# pxname,svname\nweb_a,b1\n"])
def test_an_answer_that_was_cut_off_is_a_fault_that_may_pass(answer: bytes) -> None:
    """Half a table is no table."""
    with dying(answer) as path:
        with pytest.raises(TemporaryFault, match="before its answer did"):
            ask(path, "show stat")
        assert ask(path, "reload", ends=False) == answer.decode()


@pytest.mark.parametrize("answer", [b"", b"\n", b"\n\n"])
def test_commands_that_nobody_carried_out_are_not_done(answer: bytes) -> None:
    """Three commands, and an empty line for two of them at most."""
    with dying(answer) as path, pytest.raises(TemporaryFault, match="HAProxy ended"):
        execute(path, ["set a", "set b", "set c"])


def test_a_refusal_is_told_in_its_own_words() -> None:
    """The whole first line."""
    words = r"HAProxy refused: No such server\.$"
    with dying(b"\nNo such server.\n\n") as path, pytest.raises(PermanentFault, match=words):
        execute(path, ["set a", "set b"])


@pytest.mark.parametrize("answer", [b"", b"# pxname,svname\n"])
def test_a_plane_whose_proxy_dies_while_it_is_read_can_be_read_again(answer: bytes) -> None:
    """The agent's loop survives faults, and nothing else."""
    with dying(answer) as path:
        plane = HaproxyDataplane(path.parent)
        plane._groups = {"web": GROUP}
        with pytest.raises(TemporaryFault):
            plane.read()
        with pytest.raises(TemporaryFault):
            plane.apply(table("web", 1, {"b1": 256}), decision=1)


@pytest.mark.component("haproxy")
def test_a_real_haproxy_ends_every_answer() -> None:
    """Dumps, single values, several commands in a line, and both sockets."""
    world = HaproxyWorld()
    try:
        opened(world)
        files = HaproxyFiles(world.folder)
        words = f"show map {files.states}"
        for command in ("show info", "show stat -1 6 -1", words, f"{words}; show info"):
            assert ask(files.socket, command).endswith("\n\n")
        assert ask(files.master, "show proc").endswith("\n\n")
        execute(files.socket, [f"set server web_{side}/b1 state ready" for side in "abf"] * 200)
    finally:
        world.close()


def test_the_log_says_which_groups_are_well() -> None:
    """Requests that failed and refusals are told from successes; lines that came too fast are lost,
    and nobody is known to be well."""
    log, lines = HaproxyLog(), ["web_a b1 200 -- 5 1"]
    assert log.take("\n".join(lines), 0) is None, "what is in the ring is older"
    assert log.take("\n".join(lines), 0) == {}
    lines += ["web_a b1 404 -- 5 2", "api_b b1 200 -- 5 3", "api_b b1 502 SH 5 4"]
    assert log.take("\n".join(lines), 0) == {"web": True, "api": False}
    lines += ["api_b b1 200 -- 5 5", "web_soft <NOSRV> 429 LR 0 6"]
    assert log.take("\n".join(lines), 0) == {"api": True, "web": False}
    assert log.take("web_a b1 200 -- 5 99", 0) is None
    assert log.take("", 0) == {}


@pytest.mark.component("haproxy")
def test_a_server_is_told_its_weight_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of many backends mostly differs in a few; one that was drained is told anew, and so
    is everything that may not have been carried out."""
    sent: list[str] = []
    fail = False

    def carry_out(path: Path, commands: list[str]) -> None:
        weights = [command for command in commands if " weight " in command]
        sent.extend(weights)
        if fail and weights:
            raise TemporaryFault("it ended")
        execute(path, commands)

    def told(epoch: int, slots: dict[str, int]) -> list[str]:
        sent.clear()
        world.plane.apply(table("web", epoch, slots), decision=None)
        return [" ".join(command.split()[2:]) for command in sent]

    world = HaproxyWorld()
    try:
        group = opened(world)
        monkeypatch.setattr("fairlead.dataplane.haproxy.dataplane.execute", carry_out)
        even = dict.fromkeys(("b1", "b2", "b3", "b4"), 64)
        assert len(told(1, even)) == 8
        assert len(told(2, even)) == 4, "of the other side; the hashed one is as it was"
        shifted = {**even, "b1": 32, "b2": 96}
        assert told(3, shifted) == ["web_b/b1 weight 32", "web_b/b2 weight 96"]
        world.plane.drain("web", "b3", decision=None)
        assert told(4, shifted)[:3] == [
            "web_a/b1 weight 32",
            "web_a/b2 weight 96",
            "web_a/b3 weight 64",
        ]
        fail = True
        with pytest.raises(TemporaryFault):
            told(5, even)
        fail = False
        assert told(5, even)[:2] == ["web_b/b1 weight 64", "web_b/b2 weight 64"]
        assert {*world.send(group, 8)} == {*even}
    finally:
        world.close()
