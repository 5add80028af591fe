"""What a writer does first: verify what came since the last checkpoint, and find its position.

A log of any length opens in the time that the entries since then take, about 10 µs each; what lies
before is what `fairlead audit verify` is for.
"""

from fairlead.core.audit import Frontier
from fairlead.ledger.keys import Signers
from fairlead.ledger.reading import standing_at
from fairlead.ledger.sequence import Position
from fairlead.ledger.statements import Standing
from fairlead.ledger.store import Store
from fairlead.ledger.verify import verify_tail
from fairlead.ports.ledger import Damaged


def check_opening(store: Store, signers: Signers) -> Position:
    """Where to go on appending. Raises `Damaged`, or a `PermanentFault` without the key."""
    with store.view() as view:
        head = view.kept().head.head
        checkpoints = [each for each in view.checkpoints(above=0) if each.head.size <= head.size]
        frontier, standing = Frontier(), Standing()
        if checkpoints:
            start = checkpoints[-1]
            frontier = Frontier.of(start.head.size, store.nodes)
            standing = standing_at(store, start.head.size)
            if start.head.root != frontier.root().hex():
                raise Damaged(f"the tree is not that of the checkpoint of size {start.head.size}")
            if problem := standing.check(start):
                raise Damaged(f"the checkpoint of size {start.head.size} {problem}")
        found = verify_tail(view, frontier, standing)
    if not found.ok:
        raise Damaged(f"the ledger does not verify: {found.problem}")
    signers.load(head.key_id)
    return Position(head.ledger, head.epoch, head.key_id, Frontier.of(head.size, store.nodes))
