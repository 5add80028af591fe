"""What may be in a ledger's schema of a PostgreSQL database: what its migrations make, no more.

As in SQLite: a trigger or a rule could change what is appended, a view could take the place of a
table, a default or a policy could change or hide rows. The schema is described in lines of text,
which are compared with those of a new ledger (`postgres_schema.txt`).
"""

from collections.abc import Callable, Iterable
from importlib.resources import files as resources
from typing import Any

Execute = Callable[..., Iterable[tuple[Any, ...]]]
FILE = "postgres_schema.txt"

_OURS = "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = current_schema"
_PARTS = (
    f"""SELECT concat_ws(' ', CASE relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view'
        WHEN 'i' THEN 'index' WHEN 'S' THEN 'sequence' ELSE 'kind ' || relkind::text END,
        relname, CASE WHEN relrowsecurity THEN 'with policies' END,
        CASE WHEN relpersistence <> 'p' THEN 'not logged' END) {_OURS}""",
    f"""SELECT concat_ws(' ', 'column', relname || '.' || attname, format_type(atttypid, atttypmod),
        CASE WHEN attnotnull THEN 'not null' END, CASE WHEN attidentity <> '' THEN 'identity' END,
        CASE WHEN attgenerated <> '' THEN 'generated' END,
        'default ' || pg_get_expr(adbin, adrelid)) FROM pg_attribute a
        LEFT JOIN pg_attrdef d ON adrelid = attrelid AND adnum = attnum
        JOIN (SELECT c.oid, relname {_OURS} AND relkind IN ('r', 'p', 'f')) c ON c.oid = attrelid
        WHERE attnum > 0 AND NOT attisdropped""",
    f"""SELECT 'index: ' || replace(pg_get_indexdef(c.oid), quote_ident(nspname) || '.', '')
        {_OURS} AND relkind IN ('i', 'I')""",
    f"""SELECT concat_ws(' ', 'trigger', tgname, 'on', relname,
        CASE WHEN tgenabled <> 'O' THEN 'disabled or always' END,
        replace(pg_get_triggerdef(t.oid), quote_ident(nspname) || '.', '')) FROM pg_trigger t
        JOIN (SELECT c.oid, relname, nspname {_OURS}) c ON c.oid = tgrelid
        WHERE NOT tgisinternal""",
    """SELECT concat_ws(' ', 'function', proname, lanname, md5(prosrc)) FROM pg_proc p
        JOIN pg_namespace n ON n.oid = pronamespace JOIN pg_language l ON l.oid = prolang
        WHERE nspname = current_schema""",
    f"""SELECT concat_ws(' ', 'rule', rulename, 'on', relname) FROM pg_rewrite r
        JOIN (SELECT c.oid, relname {_OURS}) c ON c.oid = ev_class""",
    f"""SELECT concat_ws(' ', 'constraint', conname, 'on', relname, pg_get_constraintdef(k.oid))
        FROM pg_constraint k JOIN (SELECT c.oid, relname {_OURS}) c ON c.oid = conrelid
        WHERE contype IN ('c', 'f', 'x', 't')""",
    f"""SELECT concat_ws(' ', 'policy', polname, 'on', relname) FROM pg_policy
        JOIN (SELECT c.oid, relname {_OURS}) c ON c.oid = polrelid""",
    f"""SELECT concat_ws(' ', 'inheritance of', relname) FROM pg_inherits
        JOIN (SELECT c.oid, relname {_OURS}) c ON c.oid IN (inhrelid, inhparent)""",
)


def describe(execute: Execute) -> list[str]:
    """The schema that the connection works in, in lines, its tables first."""
    return [
        line
        for part in _PARTS
        for line in sorted(" ".join(row[0].split()) for row in execute(part))
    ]


def problem(execute: Execute) -> str:
    """What is there that a new ledger has not, or lacks; empty if nothing."""
    found = describe(execute)
    wanted = resources("fairlead.ledger").joinpath(FILE).read_text().splitlines()
    for line in found:
        if line not in wanted:
            return (
                f"the ledger's schema has what is not of this release: {line!r}; it could change "
                "what is recorded. Find out who made it, then drop it"
            )
    for line in wanted:
        if line not in found:
            return f"the ledger's schema lacks: {line!r}"
    return ""
