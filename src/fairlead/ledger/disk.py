"""What files need to be durable: names that are synced, contents that appear whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.ports.faults import PermanentFault


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the name of a draft to be written; it becomes `path`, durably, if all goes well."""
    draft = path.with_name(path.name + ".draft")
    try:
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
        yield draft
        descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise PermanentFault(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
