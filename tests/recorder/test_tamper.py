"""Nothing in the record can change, vanish, move or appear without being found, with its place."""

import gzip
import json
from pathlib import Path

import pytest

from fairlead.core.canonical import canonical
from fairlead.recorder import CorruptRecord, FileRecorder, read, verify
from fairlead.recorder.chain import GENESIS, BrokenLink, RecordChain, seal
from tests.recorder.documents import record
from tests.recorder.fill_golden import FORMAT_1

FIRST = "segment-00000001.jsonl"


def small_segment(directory: Path) -> Path:
    """A header, three entries and two marks, numbers with exponents among them."""
    table = {f"k{each}": each for each in range(9)}
    with FileRecorder(directory) as recorder:
        numbers = [
            recorder.append("k", version=1, time_ms=1, input={**table, "w": weight}, output={})
            for weight in (0.5, 1e22)
        ]
        recorder.mark(numbers[0], "applied", time_ms=3)
        recorder.append("k", version=1, time_ms=4, input={**table, "k3": 1e-7}, output={})
        recorder.mark(numbers[1], "voided", time_ms=5, note="né")
    return directory / FIRST


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    """At every position, several ways, the newlines and the header included."""
    file = small_segment(tmp_path)
    good = file.read_bytes()
    for position, byte in enumerate(good):
        line = good[:position].count(b"\n") + 1
        for other in {byte ^ 1, 10, 48} - {byte}:
            file.write_bytes(good[:position] + bytes([other]) + good[position + 1 :])
            with pytest.raises(CorruptRecord) as found:
                verify(file)
            assert (found.value.segment, found.value.line) == (FIRST, line), position


def test_dropped_reordered_inserted_and_repeated_lines_are_found(tmp_path: Path) -> None:
    """Every line but the last, whose loss only a head kept elsewhere can show."""
    file = small_segment(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    head = verify(file).head
    for index in range(len(lines)):
        dropped = lines[:index] + lines[index + 1 :]
        repeated = lines[: index + 1] + lines[index:]
        swapped = [*dropped[: index - 1], lines[index], *dropped[index - 1 :]] if index else []
        blank = [*lines[:index], b"\n", *lines[index:]]
        for bad in (dropped, repeated, swapped, blank):
            file.write_bytes(b"".join(bad))
            if bad and bad != lines[:-1]:
                with pytest.raises(CorruptRecord):
                    verify(file)
    file.write_bytes(b"".join(lines[:-1]))
    assert verify(file).head.seq == head.seq - 1
    with pytest.raises(CorruptRecord, match=f"{head.seq} was anchored"):
        verify(file, anchors=[head])


def test_a_record_written_anew_is_found_by_an_anchor(tmp_path: Path) -> None:
    """The chain of a forger is in order, but it is not the one that was anchored."""
    anchor = verify(small_segment(tmp_path / "true")).head
    record(tmp_path / "forged", 9)
    with pytest.raises(CorruptRecord, match="is not the one that was anchored"):
        verify(tmp_path / "forged", anchors=[anchor])


def test_missing_swapped_and_cut_segments_are_found(tmp_path: Path) -> None:
    """By the reader all of them; a writer sees a gap without reading everything."""
    record(tmp_path, 60, segment_bytes=2_000)
    files = sorted(tmp_path.glob("segment-*"))
    assert len(files) > 4
    one, two = files[1].read_bytes(), files[2].read_bytes()
    files[1].write_bytes(two)
    files[2].write_bytes(one)
    name = r"segment-00000002\.jsonl\.gz"
    with pytest.raises(CorruptRecord, match=f"{name}, line 1: does not continue"):
        verify(tmp_path)
    files[2].write_bytes(two)
    files[1].write_bytes(gzip.compress(gzip.decompress(one)[:-5]))
    with pytest.raises(CorruptRecord, match="is torn, and yet a segment follows"):
        verify(tmp_path)
    for bad in (one[:-5], one[:50] + bytes([one[50] ^ 1]) + one[51:], b"x" + one):
        files[1].write_bytes(bad)
        with pytest.raises(CorruptRecord, match=name):
            verify(tmp_path)
    files[1].unlink()
    with pytest.raises(CorruptRecord, match="does not continue"):
        verify(tmp_path)
    with pytest.raises(CorruptRecord, match="segment before it is missing"):
        FileRecorder(tmp_path)


def test_damage_is_reported_at_opening_and_nothing_is_repaired(tmp_path: Path) -> None:
    """A torn last line is the only thing a writer may cut off."""
    file = small_segment(tmp_path)
    good = file.read_bytes()
    for bad in (good.replace(b"k1", b"l1", 1), good + b"{}\n", b"", good[:40], good[:-1] + b"x"):
        file.write_bytes(bad)
        with pytest.raises(CorruptRecord):
            FileRecorder(tmp_path)
        assert file.read_bytes() == bad
    file.write_bytes(good)
    FileRecorder(tmp_path).close()


def sealed(chain: bytes, document: object) -> bytes:
    """A line as a forger who knows the format would write it."""
    return seal(chain, document)[0]


HEADER = {"header": {"chain": GENESIS.hex(), "format": 1, "pending": []}, "seq": 0}


@pytest.mark.parametrize(
    "document",
    [
        {"header": {"chain": GENESIS.hex(), "format": 3, "pending": []}, "seq": 0},
        {"header": {"chain": GENESIS.hex(), "format": 1, "pending": []}, "seq": 5},
        {"header": {"chain": "11" * 32, "format": 1, "pending": []}, "seq": 0},
        {"header": {"chain": "zz", "format": 1, "pending": []}, "seq": 0},
        {"header": {"chain": GENESIS.hex(), "format": 1, "pending": [[]]}, "seq": 0},
        {"header": {"chain": GENESIS.hex(), "format": True, "pending": []}, "seq": 0},
        {"header": [], "seq": 0},
        {"seq": 0},
    ],
)
def test_a_forged_header_is_a_broken_link(document: object) -> None:
    """Whatever it holds, no other error leaves the reader."""
    with pytest.raises(BrokenLink):
        RecordChain().begin(sealed(GENESIS, document))


@pytest.mark.parametrize(
    "document",
    [
        {"seq": 1},
        {"kind": "k", "patch": {}, "seq": 1, "time_ms": 0, "version": 1},
        {"input": [], "kind": "k", "output": {}, "seq": 1, "time_ms": 0, "version": 1},
        {"mark": 1, "note": "", "seq": 1, "status": "done", "time_ms": 0},
        {"mark": 1, "note": "", "seq": True, "status": "applied", "time_ms": 0},
    ],
)
def test_a_forged_line_is_a_broken_link(document: object) -> None:
    """The hash fits, the rest does not."""
    chain = RecordChain()
    chain.begin(sealed(GENESIS, HEADER))
    assert chain.hash is not None
    with pytest.raises(BrokenLink):
        chain.take(sealed(chain.hash, document))


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\n",
        b"[]\n",
        b"1\n",
        b'{"hash":"","x":NaN}\n',
        b'{"hash":1}\n',
        b'{"hash":"\\ud800","seq":1}\n',
        b'{"hash":"00","seq":' + b"9" * 5_000 + b"}\n",
        b'{"hash":"00","seq":' + b"[" * 100_000 + b"\n",
        b'{"hash":"00","seq":' + b"[" * 900 + b"]" * 900 + b"}\n",
    ],
)
def test_rubbish_is_a_broken_link(line: bytes) -> None:
    """Bytes that are no JSON, no object, too deep or too long."""
    with pytest.raises(BrokenLink):
        RecordChain().begin(line)


def test_a_patch_that_fits_nothing_is_corruption(tmp_path: Path) -> None:
    """In a record of format 1; also where a forger made the hash of its line fit."""
    lines = FORMAT_1.read_bytes().splitlines(keepends=True)
    index = next(index for index, line in enumerate(lines) if b'"patch":' in line)
    document = json.loads(lines[index])
    document["patch"]["input"] = {"nowhere": {"x": [1]}}
    lines[index] = canonical(document) + b"\n"
    file = tmp_path / FIRST
    file.write_bytes(b"".join(lines))
    with pytest.raises(
        CorruptRecord, match=f"{FIRST}, line {index + 1}: cannot be read: no member 'nowhere"
    ):
        list(read(file))
