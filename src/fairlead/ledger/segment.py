"""Segments: a run of entries in a file that can be verified by itself, for archives and exports.

One line of JSON about the run, then each entry's canonical bytes as a line of its own, then the
blobs that these entries name, each once, as a line of canonical JSON. The first line holds the
frontier before the run, a signed head of the ledger, and the proof that the log up to the end of
the run begins the log of that head. An archive is a directory of segments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from fairlead.core.audit import Frontier, SignedHead, TreeNode, check_consistency, leaf_hash
from fairlead.core.canonical import canonical
from fairlead.ledger.entries import parse
from fairlead.ledger.signatures import signature_holds
from fairlead.ledger.verify import answer
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged, Entry, LedgerReader, Progress, Verification
from fairlead.schema.audit import SEGMENT_FORMAT, SegmentDocument, read_segment_header
from fairlead.schema.border import DOCUMENT_BYTES_MAX, BadInput

ReadNodes = Callable[[Sequence[TreeNode]], list[bytes]]
"""Hashes of the tree's nodes, in the order asked."""
Keys = Mapping[str, bytes]
Reported = Progress | None
_PAGE = 1_000
# What a first line can come to: 64 hashes of 64 digits twice, and a few hundred keys.
_HEADER_BYTES_MAX = 1 << 20


def write_segment(
    reader: LedgerReader, nodes: ReadNodes, run: range, out: BinaryIO, progress: Reported
) -> None:
    first, last, head = run[0], run[-1], reader.head()
    header = {
        "format": SEGMENT_FORMAT,
        "first": first,
        "last": last,
        "before": [peak.hex() for peak in Frontier.of(first - 1, nodes).peaks],
        "head": head.as_document(),
        "consistency": [node.hex() for node in reader.consistency(last, head.head.size)],
        "keys": {name: key.hex() for name, key in reader.keys().items()},
    }
    out.write(canonical(header) + b"\n")
    done, named = first - 1, dict[str, int]()
    while done < last:
        page = reader.entries(done, min(_PAGE, last - done))
        out.writelines(entry.data + b"\n" for entry in page)
        for entry in page:
            for digest in entry.blobs:
                named.setdefault(digest, entry.seq)
        done = page[-1].seq
        if progress:
            progress(done - first + 1, last - first + 1)
    for digest, seq in named.items():
        data = reader.blob_get(digest)
        if data is None:
            raise Damaged(f"a blob of entry {seq} is missing")
        out.write(data + b"\n")


class Segment:
    """A segment's file, opened for reading."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        line = file.readline(_HEADER_BYTES_MAX + 1)
        if not line.endswith(b"\n"):
            raise BadInput("$", "is not a segment: its first line has no end")
        self.header: SegmentDocument = read_segment_header(line)

    def entries(self) -> Iterator[Entry]:
        """The entries as the file has them, not compared with anything."""
        for seq in range(self.header.first, self.header.last + 1):
            line = self._file.readline(DOCUMENT_BYTES_MAX)
            if not line:
                return
            yield parse(line.removesuffix(b"\n"), seq)

    def blobs(self) -> Iterator[bytes]:
        """After the entries: the blobs that they name."""
        while line := self._file.readline(DOCUMENT_BYTES_MAX):
            yield line.removesuffix(b"\n")

    def verify(
        self,
        held: Sequence[SignedHead] = (),
        *,
        keys: Keys | None = None,
        progress: Reported = None,
    ) -> Verification:
        """Follow the entries to the head. `keys`: those of the ledger, else those in the file."""
        header, head = self.header, self.header.head.to_head()
        frontier = Frontier(header.first - 1, tuple(map(bytes.fromhex, header.before)))
        roots = {frontier.size: frontier.root()}
        cuts, named = {signed.head.size for signed in held}, dict[str, int]()
        try:
            for seq, entry in enumerate(self.entries(), start=header.first):
                if entry.seq != seq:
                    raise Damaged(f"entry {seq} is missing or out of place", seq)
                frontier = frontier.extend([leaf_hash(entry.data)]).frontier
                if seq in cuts:
                    roots[seq] = frontier.root()
                for digest in entry.blobs:
                    named.setdefault(digest, seq)
                if progress and seq % _PAGE == 0:
                    progress(seq - header.first + 1, header.last - header.first + 1)
            if frontier.size != header.last:
                raise Damaged(f"ends after entry {frontier.size}, not {header.last}")
            self._check_head(head, frontier, keys)
            _check_held(held, head, roots)
            self._check_blobs(named)
        except Damaged as damage:
            return answer(frontier, damage)
        return answer(frontier)

    def _check_blobs(self, named: dict[str, int]) -> None:
        """Every blob that an entry names is here, and nothing else is."""
        for data in self.blobs():
            if named.pop(sha256(data).hexdigest(), None) is None:
                raise Damaged("holds something that none of its entries names")
        for seq in named.values():
            raise Damaged(f"a blob of entry {seq} is missing or was changed", seq)

    def _check_head(self, signed: SignedHead, frontier: Frontier, keys: Keys | None) -> None:
        head = signed.head
        known = {name: bytes.fromhex(key) for name, key in self.header.keys.items()}
        key = (known if keys is None else keys).get(head.key_id)
        if key is None or not signature_holds(key, head.to_sign(), signed.signature):
            raise Damaged("the signature of its head does not hold")
        if not check_consistency(
            old_size=frontier.size,
            old_root=frontier.root(),
            new_size=head.size,
            new_root=bytes.fromhex(head.root),
            proof=[bytes.fromhex(node) for node in self.header.consistency],
        ):
            raise Damaged("the entries are not those of its head")


@contextmanager
def open_segment(path: Path) -> Iterator[Segment]:
    try:
        with path.open("rb") as file:
            yield Segment(file)
    except OSError as error:
        raise PermanentFault(f"cannot read {path}: {error.strerror}") from error


def _check_held(held: Sequence[SignedHead], own: SignedHead, roots: dict[int, bytes]) -> None:
    """Heads that were held elsewhere: of the same ledger, at a size inside the run."""
    for head in (signed.head for signed in held):
        size, root = head.size, roots.get(head.size)
        if head.ledger != own.head.ledger:
            raise Damaged(f"the head held elsewhere is of ledger {head.ledger}")
        if (size, head.root) == (own.head.size, own.head.root):
            continue
        if root is None:
            raise Damaged(f"the head held elsewhere (size {size}) ends outside of this segment")
        if root.hex() != head.root:
            raise Damaged(f"the entries up to {size} are not those of the head held elsewhere")


def verify_archive(
    segments: Sequence[Path], archived_to: int, nodes: ReadNodes, keys: Keys, progress: Reported
) -> Verification:
    """Whether these segments, in order, hold every archived entry exactly as the tree has them.

    A segment's entries are the tree's if the frontiers at both ends are the tree's.
    """
    done, root = 0, Frontier().root().hex()
    for path in segments:
        if done >= archived_to:
            break
        try:
            with open_segment(path) as segment:
                header = segment.header
                if header.last <= done:
                    continue  # written again after a crash, under another end
                if header.first > done + 1:
                    break
                found = segment.verify(keys=keys, progress=progress)
        except BadInput as error:
            return Verification(done, root, f"{path.name}: {error}")
        before = [peak.hex() for peak in Frontier.of(header.first - 1, nodes).peaks]
        end = Frontier.of(header.last, nodes).root().hex()
        if not found.ok or header.before != before or found.root != end:
            problem = found.problem or "its entries are not those of the ledger"
            return Verification(done, root, f"{path.name}: {problem}", found.seq)
        done, root = header.last, end
    if done < archived_to:
        return Verification(done, root, f"no segment holds entry {done + 1}", done + 1)
    return Verification(done, root)
