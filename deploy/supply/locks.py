"""The pins of requirements/*.txt: names, versions, hashes, and which package asked for which."""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One distribution of a lock."""

    name: str
    version: str
    sha256: tuple[str, ...]
    """Of its files: any one of them may be installed."""
    via: tuple[str, ...] = field(default=())
    """The packages that need it; files of direct requirements begin with `-r`."""

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def key(name: str) -> str:
    """The one spelling of a name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> list[Pin]:
    """The pins of a file that pip-compile wrote, by name; refuses a pin without a hash."""
    pins, block = list[Pin](), list[str]()
    for line in [*path.read_text().splitlines(), "end==0"]:
        if _PIN.match(line):
            if block:
                pins.append(_pin(block, path))
            block = [line]
        elif block:
            block.append(line)
    return sorted(pins, key=lambda pin: pin.name)


def _pin(block: list[str], path: Path) -> Pin:
    found = _PIN.match(block[0])
    assert found is not None, block[0]
    hashes = tuple(sorted(_HASH.findall("\n".join(block))))
    if not hashes:
        raise SystemExit(f"{path}: {found[0]} has no hash (make lock)")
    comments = [line.split("#", 1)[1].strip() for line in block if line.strip().startswith("#")]
    words = (line.removeprefix("via").strip() for line in comments)
    return Pin(key(found[1]), found[2], hashes, tuple(sorted(word for word in words if word)))
