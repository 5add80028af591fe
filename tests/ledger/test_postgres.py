"""What only the PostgreSQL adapter has: replicas that race, and connections that break."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from fairlead.ledger import postgres
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.place import open_for_reading
from fairlead.ledger.postgres import PostgresLedger, PostgresReader
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.ledger import HeadMoved
from tests.ledger.drafts import TIME_MS, draft, drafts
from tests.ledger.worlds import PostgresWorld

pytestmark = pytest.mark.component("postgres")


def together(count: int, work: Callable[[int], object]) -> list[object]:
    """Start at the same moment; the first failure is ours."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> object:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [each.result() for each in [pool.submit(begin, n) for n in range(count)]]


def execute(world: PostgresWorld, sql: str, *given: object) -> list[tuple[object, ...]]:
    """As another client of the same database."""
    with psycopg.connect(world.address, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {world.schema}")  # type: ignore[call-overload]
        cursor = connection.execute(sql, given)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def test_replicas_that_start_together_begin_one_ledger(postgres_world: PostgresWorld) -> None:
    """Tables, first entry and key are made once."""
    replicas = together(4, lambda _: postgres_world.open())
    heads = {replica.head() for replica in replicas}  # type: ignore[attr-defined]
    assert len(heads) == 1
    for replica in replicas:
        replica.close()  # type: ignore[attr-defined]
    assert len(list((postgres_world.directory / "keys").iterdir())) == 1


def test_two_replicas_never_lose_duplicate_or_reorder(postgres_world: PostgresWorld) -> None:
    """Each one's batches whole and in its order, each effect once although both send some."""
    replicas = [postgres_world.open(), postgres_world.open()]
    sent = 40

    def work(replica: int) -> list[list[int]]:
        ledger, batches = replicas[replica], []
        for turn in range(sent):
            first = replica * 100_000 + turn * 10
            shared = [draft(500_000 + turn)]  # both send this one
            entries = ledger.append(drafts(first, 1 + turn % 4) + shared)
            batches.append([entry.seq for entry in entries])
        return batches

    ours, theirs = together(2, work)
    for batches in (ours, theirs):
        for batch in batches:  # type: ignore[attr-defined]
            own = batch[:-1]
            assert own == list(range(own[0], own[0] + len(own)))
        firsts = [batch[0] for batch in batches]  # type: ignore[attr-defined]
        assert firsts == sorted(firsts)
    shared = [batch[-1] for batch in ours]  # type: ignore[attr-defined]
    assert shared == [batch[-1] for batch in theirs]  # type: ignore[attr-defined]
    for ledger in replicas:
        numbers = [entry.body["number"] for entry in ledger.entries(1, 100_000)]
        assert len(numbers) == len(set(numbers)) == 2 * sum(1 + t % 4 for t in range(sent)) + sent
        assert ledger.verify().ok
        ledger.close()


def test_of_two_that_expect_the_same_size_one_wins(postgres_world: PostgresWorld) -> None:
    """Again and again: the loser is told and has recorded nothing."""
    replicas = [postgres_world.open(), postgres_world.open()]
    for turn in range(15):
        size = replicas[0].head().head.size

        def work(replica: int, turn: int = turn, size: int = size) -> bool:
            try:
                replicas[replica].append([draft(turn * 10 + replica)], expected_size=size)
            except HeadMoved as moved:
                return moved.size == size
            return True

        assert sorted(map(bool, together(2, work))) == [False, True]
        assert replicas[1].head().head.size == size + 1
    assert replicas[0].verify().ok
    for ledger in replicas:
        ledger.close()


def test_keys_rotated_by_two_replicas_at_once_follow_each_other(
    postgres_world: PostgresWorld,
) -> None:
    """Each rotation is signed by the key before it, whoever made that."""
    replicas = [postgres_world.open(), postgres_world.open()]
    together(2, lambda each: replicas[each].rotate_key(time_ms=TIME_MS, author=f"r{each}"))
    together(2, lambda each: replicas[each].append(drafts(each * 100, 5)))
    for ledger in replicas:
        assert len(ledger.keys()) == 3
        assert ledger.verify().ok
        ledger.close()


def test_what_a_dead_replica_left_waiting_is_numbered_by_the_next(
    postgres_world: PostgresWorld,
) -> None:
    """It died between writing and numbering: its batch is there whole, before later ones."""
    with postgres_world.open() as ledger:
        dead = postgres_world.open()
        dead._number = _die  # type: ignore[attr-defined]
        with pytest.raises(SystemExit):
            dead.append(drafts(0, 3))
        dead.close()
        assert ledger.head().head.size == 1
        assert [entry.seq for entry in ledger.append([draft(9)])] == [5]
        assert [entry.body["number"] for entry in ledger.entries(1)] == [0, 1, 2, 9]
        assert ledger.verify().ok


def _die(*_: object) -> None:
    raise SystemExit


def test_a_fault_means_that_nothing_was_recorded(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is not to be had in time: the batch is taken back, and is not numbered later."""
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT_MS", 50)
    with postgres_world.open() as ledger, postgres_world.open() as other:
        with psycopg.connect(postgres_world.address) as holder:
            holder.execute(f"SET search_path TO {postgres_world.schema}")  # type: ignore[call-overload]
            holder.execute(
                "SELECT pg_advisory_xact_lock(%s, 'kept'::regclass::oid::int)",
                (postgres.LOCK_SPACE,),
            )
            with pytest.raises(TemporaryFault, match="lock timeout"):
                ledger.append([draft(1)])
        assert execute(postgres_world, "SELECT count(*) FROM batches") == [(0,)]
        other.append([draft(2)])
        assert [entry.body["number"] for entry in ledger.entries(1)] == [2]
        assert ledger.append([draft(1)])[0].seq == 3


@pytest.mark.parametrize("when", [0, 1, 2], ids=["before", "written", "numbered"])
def test_a_broken_connection_is_opened_again_and_nothing_is_doubled(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """Cut before, between writing and numbering, or just after numbering (the answer is lost)."""
    real, calls = postgres._answer, list[int]()

    def answer(run, waiting):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == when:
            _cut(postgres_world, ledger)
        return real(run, waiting)

    monkeypatch.setattr(postgres, "_answer", answer)
    with postgres_world.open() as ledger:
        if when == 0:
            _cut(postgres_world, ledger)
        # Without an effect, nothing but the batch's id keeps it from being recorded twice.
        entries = ledger.append([draft(1, effect=None), draft(2, effect=None)])
        assert [entry.seq for entry in entries] == [2, 3]
        assert ledger.head().head.size == 3
        assert ledger.verify().ok


def test_readers_survive_a_broken_connection(postgres_world: PostgresWorld) -> None:
    """A server that was restarted is not the end of a reader."""
    with postgres_world.open() as ledger:
        ledger.append([draft(1)])
        execute(
            postgres_world,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND application_name = 'fairlead'",
        )
        assert ledger.head().head.size == 2
        assert ledger.append([draft(2)])[0].seq == 3
    with pytest.raises(PermanentFault, match="closed"):
        ledger.head()


def test_a_server_that_is_not_there_is_a_temporary_fault(tmp_path: Path) -> None:
    """Nobody listens; and a schema without a ledger is said to be that."""
    address = "postgresql://nobody@127.0.0.1:1/none"
    with pytest.raises(TemporaryFault, match="cannot connect"):
        PostgresReader(address)


def test_a_schema_without_a_ledger_is_said_to_be_that(postgres_world: PostgresWorld) -> None:
    """Not the error of a missing table."""
    with pytest.raises(PermanentFault, match="there is no ledger"):
        PostgresReader(postgres_world.address, schema="nothing")


def test_a_reader_refuses_the_tables_of_another_release(postgres_world: PostgresWorld) -> None:
    """A later one by its number, an earlier one because a reader changes nothing."""
    postgres_world.open().close()
    with PostgresReader(postgres_world.address, schema=postgres_world.schema) as reader:
        assert reader.verify().ok
    execute(postgres_world, "INSERT INTO migrations VALUES (99, 'later')")
    with pytest.raises(PermanentFault, match="later release"):
        PostgresReader(postgres_world.address, schema=postgres_world.schema)
    execute(postgres_world, "DELETE FROM migrations")
    with pytest.raises(PermanentFault, match="earlier release"):
        PostgresReader(postgres_world.address, schema=postgres_world.schema)


def test_commits_that_are_not_durable_are_refused(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that runs without fsync may lose what it acknowledged."""
    monkeypatch.setattr(postgres, "DURABLE", ("synchronous_commit", "enable_seqscan"))
    monkeypatch.setenv("PGOPTIONS", "-c enable_seqscan=off")
    with pytest.raises(PermanentFault, match="enable_seqscan off"):
        postgres_world.open()


def test_entries_are_never_changed_by_mistake(postgres_world: PostgresWorld) -> None:
    """Triggers, as in SQLite."""
    with postgres_world.open() as ledger:
        ledger.append(drafts(0, 3))
        for statement in (
            "DELETE FROM entries",
            "UPDATE entries SET kind = 'x'",
            "TRUNCATE entries",
            "UPDATE entries SET nodes = nodes || nodes, data = NULL",
        ):
            with pytest.raises(psycopg.Error, match="never changed"):
                execute(postgres_world, statement)
        assert ledger.verify().ok


def test_tampering_is_found(postgres_world: PostgresWorld) -> None:
    """By somebody with all rights on the database."""
    changes = [
        "UPDATE entries SET data = overlay(data placing '\\x00' from 9) WHERE seq = 3",
        "UPDATE entries SET nodes = set_byte(nodes, 3, 7) WHERE seq = 2",
        "DELETE FROM entries WHERE seq = 2",
        "UPDATE entries SET nodes = nodes || nodes WHERE seq = 3",
        "UPDATE kept SET time_ms = 1",
    ]
    for number, change in enumerate(changes):
        world = PostgresWorld(postgres_world.address, postgres_world.directory / str(number))
        with world.open() as ledger:
            ledger.append(drafts(0, 5))
            execute(world, "SET session_replication_role = replica; " + change)
            assert not ledger.verify().ok, change


def test_the_command_line_reads_it_too(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--ledger postgresql://…`, in the schema that is the default."""
    world = PostgresWorld(postgres_world.address, postgres_world.directory, schema="fairlead")
    with world.open() as ledger:
        ledger.append(drafts(0, 3))
        with open_for_reading(world.address) as reader:
            assert reader.head() == ledger.head()
    result = subprocess.run(
        [sys.executable, "-m", "fairlead", "audit", "verify"],
        capture_output=True,
        check=False,
        env={**os.environ, "FAIRLEAD_LEDGER": world.address},
    )
    assert (result.returncode, result.stdout[:20]) == (0, b"verified: 4 entries,")
    execute(world, "DROP SCHEMA fairlead CASCADE")


def test_answers_are_forgotten_after_a_while(postgres_world: PostgresWorld) -> None:
    """They are only kept for writers that lost their connection."""
    with postgres_world.open() as ledger:
        ledger.append([draft(1)])
        assert execute(postgres_world, "SELECT count(*) FROM batches") == [(1,)]
        execute(postgres_world, "UPDATE batches SET answered = now() - interval '2 hours'")
        ledger.append([draft(2)])
        ((count,),) = execute(postgres_world, "SELECT count(*) FROM batches")
        assert count == 1


def alone(world: PostgresWorld, *, take_over: bool = False) -> PostgresLedger:
    keys, how = KeyDirectory(world.directory / "keys"), {"alone": True, "take_over": take_over}
    return PostgresLedger.open(world.address, keys, schema=world.schema, **how)


def test_of_those_who_want_to_be_alone_one_is(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is told; writers that do not mind, and readers, are not kept out."""
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT_MS", 50)
    with alone(postgres_world) as ledger:
        with pytest.raises(TemporaryFault, match="another control plane"):
            alone(postgres_world)
        with postgres_world.open() as other:
            other.append([draft(1)])
        assert ledger.append([draft(2)])[0].seq == 3
    with alone(postgres_world) as ledger:
        assert ledger.head().head.size == 3


def test_who_lost_its_seat_neither_writes_nor_reads(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection broke and another was quicker: what it would start, the other starts."""
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT_MS", 200)
    with alone(postgres_world) as ledger:
        ledger.append([draft(1)])
        _cut(postgres_world, ledger)
        assert ledger.append([draft(2)])[0].seq == 3, "nobody else was there: it goes on"
        _cut(postgres_world, ledger)
        with alone(postgres_world) as other:
            with pytest.raises(TemporaryFault, match="another control plane"):
                ledger.append([draft(3)])
            with pytest.raises(TemporaryFault, match="another control plane"):
                ledger.entries(0)
            assert other.append([draft(4)])[0].seq == 4
        assert ledger.entries(3)[0].body["number"] == 4, "its turn again"


def test_a_leader_takes_the_seat_of_one_that_is_halted(postgres_world: PostgresWorld) -> None:
    """Which would keep it for as long as its machine answers, and neither writes nor reads now.
    Those of another ledger in the same database keep theirs."""
    beside = PostgresWorld(postgres_world.address, postgres_world.directory / "beside")
    with alone(beside) as untouched, alone(postgres_world) as halted:
        halted.append([draft(1)])
        with alone(postgres_world, take_over=True) as leader:
            assert leader.append([draft(2)])[0].seq == 3
            for act in (lambda: halted.append([draft(3)]), lambda: halted.entries(0)):
                with pytest.raises(TemporaryFault, match="another control plane"):
                    act()
            assert leader.append([draft(4)])[0].seq == 4
        before = untouched._session._connection.info.backend_pid  # type: ignore[attr-defined]
        untouched.append([draft(1)])
        assert untouched._session._connection.info.backend_pid == before  # type: ignore[attr-defined]


def _cut(world: PostgresWorld, ledger: StoreWriter) -> None:
    connection = ledger._session._connection  # type: ignore[attr-defined]
    execute(world, "SELECT pg_terminate_backend(%s, 5000)", connection.info.backend_pid)


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("postgresql://fairlead@db.example:5432/fairlead", True),
        ("postgresql:///fairlead?host=/var/run/postgresql", True),
        ("postgresql://one:5432,two:5433/fairlead", True),
        ("postgresql://user:pass%2Fword@host/db", True),
        ("postgresql://user:pass/word@host/db", False),
        ("postgresql://host/db?nonsense=1", False),
        ("postgresql://host/%zz", False),
    ],
)
def test_what_is_no_address_is_known_before_anybody_connects(address: str, *, good: bool) -> None:
    """The library's own errors would repeat pieces of a password."""
    assert postgres.is_address(address) is good
