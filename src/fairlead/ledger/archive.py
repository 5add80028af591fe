"""Archives: a directory of segments that together hold what a ledger has moved away."""

from collections.abc import Mapping
from pathlib import Path

from fairlead.core.audit import Frontier
from fairlead.ledger.segment import open_segment
from fairlead.ledger.store import Store
from fairlead.ports.ledger import Progress, Verification
from fairlead.schema.border import BadInput


def segment_name(ledger: str, first: int, last: int) -> str:
    """A name that sorts by the entries it holds."""
    return f"{ledger}-{first:012d}-{last:012d}.jsonl"


def verify_archive(
    directory: Path, store: Store, keys: Mapping[str, bytes], progress: Progress | None = None
) -> Verification:
    """Whether the segments in a directory hold every archived entry, exactly as the tree has them.

    A segment's entries are the tree's if the frontiers at both ends are the tree's.
    """
    kept = store.kept()
    done, root = 0, Frontier().root().hex()
    for path in sorted(directory.glob(f"{kept.head.head.ledger}-*.jsonl")):
        if done >= kept.archived_to:
            break
        try:
            with open_segment(path) as segment:
                header = segment.header
                if header.last <= done:
                    continue  # written again after a crash, under another end
                if header.first > done + 1:
                    return Verification(done, root, f"no segment holds entry {done + 1}", done + 1)
                before = [bytes.fromhex(each) for each in header.before]
                found = segment.verify(keys=keys, progress=progress)
        except BadInput as error:
            return Verification(done, root, f"{path.name}: {error}")
        start = list(Frontier.of(header.first - 1, store.nodes).peaks)
        end = Frontier.of(header.last, store.nodes).root().hex()
        if not found.ok or before != start or found.root != end:
            problem = found.problem or "its entries are not those of the ledger"
            return Verification(done, root, f"{path.name}: {problem}", found.seq)
        done, root = header.last, end
    if done < kept.archived_to:
        return Verification(done, root, f"no segment holds entry {done + 1}", done + 1)
    return Verification(done, root)
