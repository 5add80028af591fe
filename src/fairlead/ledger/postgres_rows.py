"""Rows of a PostgreSQL ledger: drafts that wait, and what a numbered step stores."""

from collections.abc import Sequence

import msgspec

from fairlead.ledger.entries import Prepared
from fairlead.ledger.postgres_db import Connection
from fairlead.ledger.sequence import Effect, Sequenced
from fairlead.ledger.store import HEAD_COLUMNS, Found, head_row
from fairlead.ledger.writing import passes_checkpoint

_Fields = tuple[str, str | None, str | None, bytes, bytes, tuple[tuple[str, bytes], ...]]
_unpack = msgspec.msgpack.Decoder(list[_Fields])
_COPY = "COPY entries (seq, kind, plan_id, effect, nodes, data) FROM STDIN BINARY"
_MARKS = ", ".join(["%s"] * len(HEAD_COLUMNS.split(",")))
_EXCLUDED = ", ".join(f"excluded.{name.strip()}" for name in HEAD_COLUMNS.split(","))


def pack(drafts: Sequence[Prepared]) -> bytes:
    """Drafts as one value: a batch is one row, so it is there whole or not at all."""
    return msgspec.msgpack.encode(
        [
            (each.kind, each.plan_id, each.effect, each.front, each.back, each.blobs)
            for each in drafts
        ]
    )


def unpack(data: bytes) -> list[Prepared]:
    """The drafts of a batch, whichever replica wrote it."""
    return [Prepared(*fields) for fields in _unpack.decode(data)]


def lookup(connection: Connection, effects: Sequence[Effect]) -> dict[Effect, Found]:
    """Which of these effects are recorded already."""
    rows = connection.execute(
        "SELECT plan_id, effect, seq FROM entries "
        "JOIN unnest(%s::text[], %s::text[]) AS wanted (plan, name) "
        "ON plan_id = plan AND effect = name",
        ([plan for plan, _ in effects], [name for _, name in effects]),
    ).fetchall()
    # The bytes are read with the answer, by whoever asked.
    return {(plan, name): Found(seq, None) for plan, name, seq in rows}


def store_step(connection: Connection, done: Sequenced) -> None:
    """All rows of a step, inside the caller's transaction."""
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(["int8", "text", "text", "text", "bytea", "bytea"])
        for row in done.rows:
            copy.write_row(row)
    for blob in done.blobs:
        connection.execute(
            "INSERT INTO blobs (digest, data, seq) VALUES (%s, %b, %s) ON CONFLICT (digest) "
            "DO UPDATE SET seq = excluded.seq WHERE blobs.seq IS NOT NULL",
            blob,
        )
    head = head_row(done.head)
    connection.execute(
        f"INSERT INTO kept (one, {HEAD_COLUMNS}) VALUES (1, {_MARKS}) ON CONFLICT (one) "
        f"DO UPDATE SET ({HEAD_COLUMNS}) = ({_EXCLUDED})",
        head,
    )
    if passes_checkpoint(done.rows[0].seq - 1, done.head.head.size):
        connection.execute(f"INSERT INTO checkpoints ({HEAD_COLUMNS}) VALUES ({_MARKS})", head)
