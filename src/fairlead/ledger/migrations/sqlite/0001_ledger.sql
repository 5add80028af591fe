-- Entries as their canonical bytes, beside what they are found by and the nodes of the Merkle tree
-- that each completes (its leaf, then one per level above). The nodes stand before the bytes, so
-- that a proof reads no further. A row whose content was moved to an archive segment stays, with
-- data NULL: plans and effects stay unique for ever, and the tree stays whole.
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY CHECK (seq > 0),
    kind TEXT NOT NULL,
    plan_id TEXT,
    effect TEXT CHECK (effect IS NULL OR plan_id IS NOT NULL),
    nodes BLOB NOT NULL CHECK (length(nodes) >= 32),
    data BLOB
) STRICT;
CREATE INDEX entries_by_kind ON entries (kind);
-- One index for two questions: NULLs are distinct, so a plan may have any number of entries without
-- an effect, and one for each effect.
CREATE UNIQUE INDEX entries_by_plan ON entries (plan_id, effect) WHERE plan_id IS NOT NULL;

-- The head: the one row that changes.
CREATE TABLE kept (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    ledger TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    size INTEGER NOT NULL,
    root TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    key_id TEXT NOT NULL,
    signature TEXT NOT NULL,
    archived_to INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Signed heads on the way: an opening verifies only what came after the last of them.
CREATE TABLE checkpoints (
    size INTEGER PRIMARY KEY,
    ledger TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    root TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    key_id TEXT NOT NULL,
    signature TEXT NOT NULL
) STRICT;

-- Large inputs, by their SHA-256, with the last entry that has it: they go to the archive together.
-- Without an entry it was kept for its own sake, and stays.
CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    data BLOB NOT NULL,
    seq INTEGER
) STRICT;
CREATE INDEX blobs_by_entry ON blobs (seq) WHERE seq IS NOT NULL;

-- States of projections. Not part of the truth: each can be made again from the entries.
CREATE TABLE snapshots (
    name TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    state BLOB NOT NULL
) STRICT;

-- A guard against our own mistakes; whoever means harm is found by the tree.
CREATE TRIGGER entries_stay BEFORE DELETE ON entries BEGIN
    SELECT RAISE(ABORT, 'entries are never deleted');
END;
CREATE TRIGGER entries_keep BEFORE UPDATE ON entries
WHEN NEW.data IS NOT NULL OR NEW.seq != OLD.seq OR NEW.kind != OLD.kind
    OR NEW.plan_id IS NOT OLD.plan_id OR NEW.effect IS NOT OLD.effect OR NEW.nodes != OLD.nodes
BEGIN
    SELECT RAISE(ABORT, 'entries are never changed, only archived');
END;
