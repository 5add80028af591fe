"""A writer to be killed: `python -m tests.ledger.victim PLACE KEYS SCHEMA FIRST_NUMBER`.

PLACE is a file or a PostgreSQL address. It says what was acknowledged, one line each, after the
call has returned: the number of the batch's first draft, the entries' numbers, the head as JSON.
The lines go out unbuffered, so what was said was promised.
"""

import json
import os
import random
import sys

from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ledger.writing import StoreWriter
from tests.ledger.drafts import drafts


def open_ledger(place: str, keys: str, schema: str) -> StoreWriter:
    """The ledger that is written."""
    if not place.startswith("postgresql://"):
        return SqliteLedger.open(place, KeyDirectory(keys))
    from fairlead.ledger.postgres import PostgresLedger  # noqa: PLC0415 - an extra

    return PostgresLedger.open(place, KeyDirectory(keys), schema=schema)


def main(place: str, keys: str, schema: str, number: int) -> None:
    """Append for ever, batches of many sizes; every fifth is sent twice, as after a fault."""
    rng = random.Random(number)
    with open_ledger(place, keys, schema) as ledger:
        while True:
            batch = drafts(number, rng.choice([1, 1, 2, 7, 60]))
            for _ in range(2 if rng.random() < 0.2 else 1):
                seqs = [entry.seq for entry in ledger.append(batch)]
                head = ledger.head().as_document()
                os.write(1, json.dumps([number, seqs, head]).encode() + b"\n")
            number += len(batch)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
