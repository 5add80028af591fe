"""Deaths and full disks: what was acknowledged stays, what was not leaves nothing behind."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.recorder import FileRecorder, read, verify
from tests.mounts import small_disk
from tests.recorder.documents import record, small
from tests.recorder.kill import kill_writers


@pytest.mark.parametrize("count", [3, 4], ids=["last line an entry", "last line a mark"])
def test_a_torn_tail_is_cut_off_at_every_offset(tmp_path: Path, count: int) -> None:
    """Readers stop before it, an opening writer repairs it and goes on."""
    record(tmp_path, count)
    (file,) = tmp_path.glob("segment-*.jsonl")
    good = file.read_bytes()
    start = good[:-1].rindex(b"\n") + 1
    head = verify(file).head
    for length in range(start, len(good)):
        # Some file systems leave zeros after a power failure.
        file.write_bytes(good[:length] + (b"\0\0" if length % 5 == 1 else b""))
        assert verify(tmp_path).head.seq == head.seq - 1
        with FileRecorder(tmp_path) as recorder:
            assert file.stat().st_size == start
            assert recorder.append(**small(9)) == head.seq
        assert [entry.input["number"] for entry in read(tmp_path)][-1] == 9


def test_no_acknowledged_entry_is_lost_when_writers_are_killed(tmp_path: Path) -> None:
    """SIGKILL at random moments; `make soak` does the same many times more."""
    counted = kill_writers(tmp_path, count=20, seed=1)
    assert counted["found"] >= counted["acknowledged"] > 20


def test_a_crash_while_a_segment_begins_leaves_no_trace(tmp_path: Path) -> None:
    """A draft that was never renamed is no segment, and is overwritten."""
    record(tmp_path, 3)
    draft = tmp_path / "segment-00000002.draft"
    draft.write_bytes(b'{"hash":"half a hea')
    assert verify(tmp_path).entries == 3
    record(tmp_path, 30, segment_bytes=2_000)
    assert verify(tmp_path).entries == 33
    assert not draft.exists()


class Disk:
    """Makes the next calls of one kind fail, after writing a part where that is what disks do."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    @contextmanager
    def failing(self, call: str, code: int, *, part: int = 0) -> Iterator[None]:
        real: Callable[..., int] = getattr(os, call)

        def fail(descriptor: int, *arguments: bytes) -> int:
            if part and len(arguments[0]) > part:
                return real(descriptor, arguments[0][:part])
            raise OSError(code, os.strerror(code))

        with self._patch.context() as patch:
            patch.setattr(os, call, fail)
            yield


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk that fails on demand."""
    return Disk(monkeypatch)


@pytest.mark.parametrize(
    ("call", "code", "part", "fault"),
    [
        ("write", errno.ENOSPC, 0, TemporaryFault),
        ("write", errno.ENOSPC, 50, TemporaryFault),
        ("write", errno.EIO, 50, PermanentFault),
        ("fdatasync", errno.ENOSPC, 0, TemporaryFault),
        ("fdatasync", errno.EIO, 0, PermanentFault),
    ],
)
def test_a_failed_append_leaves_nothing_and_the_next_one_works(
    *, tmp_path: Path, disk: Disk, call: str, code: int, part: int, fault: type[Exception]
) -> None:
    """Entries, marks and the beginnings of segments; with the cause."""
    with FileRecorder(tmp_path, segment_bytes=900) as recorder:
        acknowledged = []
        for number in range(12):
            head, before = recorder.head(), sorted(tmp_path.glob("segment-*.jsonl*"))
            with disk.failing(call, code, part=part), pytest.raises(fault) as raised:
                recorder.append(**small(number))
            assert isinstance(raised.value.__cause__, OSError)
            assert recorder.head() == head == verify(tmp_path).head
            assert sorted(tmp_path.glob("segment-*.jsonl*")) == before
            acknowledged.append(recorder.append(**small(number)))
            with disk.failing(call, code, part=part), pytest.raises(fault):
                recorder.mark(acknowledged[-1], "applied", time_ms=1)
            assert [entry.seq for entry in recorder.unapplied()] == acknowledged[-1:]
            recorder.mark(acknowledged[-1], "applied", time_ms=1)
        assert len(before) > 3
    assert [entry.seq for entry in read(tmp_path)] == acknowledged
    assert [entry.input["number"] for entry in read(tmp_path)] == list(range(12))


def test_what_could_not_be_cut_off_is_cut_off_later(tmp_path: Path, disk: Disk) -> None:
    """By the next append, or by the next writer; readers see a torn line until then."""
    for reopen in (False, True):
        with FileRecorder(tmp_path) as recorder:
            recorder.append(**small(0))
            with (
                disk.failing("write", errno.ENOSPC, part=50),
                disk.failing("ftruncate", errno.EIO),
                pytest.raises(TemporaryFault) as raised,
            ):
                recorder.append(**small(1))
            assert raised.value.retry_after_ms > 0
            assert verify(tmp_path).head == recorder.head()
            with disk.failing("ftruncate", errno.EIO), pytest.raises(PermanentFault):
                recorder.append(**small(2))
            if not reopen:
                recorder.append(**small(3))
    with FileRecorder(tmp_path) as recorder:
        recorder.append(**small(4))
    assert [entry.input["number"] for entry in read(tmp_path)] == [0, 3, 0, 4]


def test_an_interrupt_in_the_middle_of_an_append_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the disk works: the shutdown may still record and mark."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with FileRecorder(tmp_path) as recorder:
        first = recorder.append(**small(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                recorder.append(**small(1))
        recorder.mark(first, "voided", time_ms=1, note="stopping")
        recorder.append(**small(2))
    assert [entry.input["number"] for entry in read(tmp_path)] == [0, 2]


def test_a_file_size_limit_leaves_the_record_consistent(tmp_path: Path) -> None:
    """The kernel's own refusal in the middle of a line (RLIMIT_FSIZE)."""
    with FileRecorder(tmp_path) as recorder:
        recorder.append(**small(0))
        size = (tmp_path / "segment-00000001.jsonl").stat().st_size
        _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, hard))
        try:
            with pytest.raises(PermanentFault, match=r"cannot record test\.small: File too large"):
                recorder.append(**small(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert verify(tmp_path).head == recorder.head()
        recorder.append(**small(2))
    assert [entry.input["number"] for entry in read(tmp_path)] == [0, 2]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with small_disk(tmp_path / "tiny", "64k") as place:
        yield place


@pytest.mark.component("mount")
def test_a_full_disk_leaves_the_record_consistent(tiny_disk: Path) -> None:
    """A real one: temporary faults until there is room again, nothing lost, nothing half there."""
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"x" * 30_000)
    with FileRecorder(tiny_disk / "recorder", segment_bytes=9_000) as recorder:
        acknowledged: list[int] = []

        def fill() -> None:
            for number in range(1_000):
                acknowledged.append(recorder.append(**small(number)))

        with pytest.raises(TemporaryFault, match="No space left"):
            fill()
        assert verify(tiny_disk / "recorder").head.seq == acknowledged[-1]
        ballast.unlink()
        acknowledged.append(recorder.append(**small(7)))
    assert [entry.seq for entry in read(tiny_disk / "recorder")] == acknowledged
