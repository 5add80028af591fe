"""The control plane's own memory of its ledger: an older copy of all of it is not believed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.place import FILE, KEYS, open_up
from fairlead.ledger.seen import SEEN, remember
from fairlead.ledger.sqlite import backup, restore
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged
from tests.ledger.drafts import TIME_MS, drafts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory whose control plane saw 11 entries, and an older copy, of 6, beside it."""
    with open_up(tmp_path / "data", None) as ledger:
        ledger.append(drafts(0, 5))
    backup(tmp_path / "data" / FILE, tmp_path / "older.db")
    with open_up(tmp_path / "data", None) as ledger:
        ledger.append(drafts(5, 5))
        remember(ledger, tmp_path / "data")
    return tmp_path / "data"


def put_back(data: Path) -> None:
    for path in data.glob(f"{FILE}*"):
        path.unlink()
    shutil.copy(data.parent / "older.db", data / FILE)


def test_an_older_copy_is_refused(data: Path) -> None:
    """All its signatures hold. What to do is said; the file can be removed."""
    open_up(data, None).close()
    put_back(data)
    with pytest.raises(Damaged, match="of 6 entries, does not continue the 11"):
        open_up(data, None)
    (data / SEEN).unlink()
    open_up(data, None).close()


def test_an_older_copy_that_grew_again_is_refused(data: Path) -> None:
    seen = (data / SEEN).read_bytes()
    put_back(data)
    (data / SEEN).unlink()
    with open_up(data, None) as ledger:
        ledger.append(drafts(100, 50))
    (data / SEEN).write_bytes(seen)
    with pytest.raises(Damaged, match="of 56 entries, does not continue the 11"):
        open_up(data, None)


def test_a_restore_that_is_recorded_is_accepted(data: Path) -> None:
    """It began an epoch, signed; so did the next."""
    for path in data.glob(f"{FILE}*"):
        path.unlink()
    keys = KeyDirectory(data / KEYS)
    how = {"time_ms": TIME_MS, "author": "root", "reason": "the disk died"}
    restore(data.parent / "older.db", data / FILE, keys, **how)
    with open_up(data, None) as ledger:
        assert ledger.head().head.epoch == 1
    open_up(data, None).close()


def test_a_new_ledger_is_another_one(data: Path) -> None:
    """Begun where the old one was moved away: there is nothing that it would have to continue."""
    for path in data.glob(f"{FILE}*"):
        path.unlink()
    open_up(data, None).close()
    open_up(data, None).close()


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda _: b"{}", lambda _: b""])
def test_a_damaged_memory_is_refused(data: Path, change: Callable[[bytes], bytes]) -> None:
    place = data / SEEN
    place.write_bytes(change(place.read_bytes()))
    with pytest.raises(PermanentFault, match="cannot read"):
        open_up(data, None)
