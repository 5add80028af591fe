-- The tables of the SQLite ledger, and one more: batches that wait for their numbers.
-- Names compare by code point ("C"), as everywhere else in a ledger.
CREATE TABLE entries (
    seq bigint PRIMARY KEY CHECK (seq > 0),
    kind text COLLATE "C" NOT NULL,
    plan_id text COLLATE "C",
    effect text COLLATE "C" CHECK (effect IS NULL OR plan_id IS NOT NULL),
    nodes bytea NOT NULL CHECK (octet_length(nodes) >= 32),
    data bytea
);
CREATE INDEX entries_by_kind ON entries (kind, seq);
CREATE UNIQUE INDEX entries_by_plan ON entries (plan_id, effect) WHERE plan_id IS NOT NULL;

CREATE TABLE kept (
    one smallint PRIMARY KEY CHECK (one = 1),
    ledger text NOT NULL,
    epoch bigint NOT NULL,
    size bigint NOT NULL,
    root text NOT NULL,
    time_ms bigint NOT NULL,
    key_id text NOT NULL,
    signature text NOT NULL,
    archived_to bigint NOT NULL DEFAULT 0
);

CREATE TABLE checkpoints (
    size bigint PRIMARY KEY,
    ledger text NOT NULL,
    epoch bigint NOT NULL,
    root text NOT NULL,
    time_ms bigint NOT NULL,
    key_id text NOT NULL,
    signature text NOT NULL
);

CREATE TABLE blobs (
    digest text COLLATE "C" PRIMARY KEY,
    data bytea NOT NULL,
    seq bigint
);
CREATE INDEX blobs_by_entry ON blobs (seq) WHERE seq IS NOT NULL;

CREATE TABLE snapshots (
    name text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL,
    state bytea NOT NULL
);

-- What transactions write before it is numbered. Whoever holds the sequencer's lock numbers what
-- waits, in the order of tickets, and leaves the answer here; the writer that asked may have died.
CREATE TABLE batches (
    id uuid PRIMARY KEY,
    ticket bigint GENERATED ALWAYS AS IDENTITY,
    expected_size bigint,
    time_ms bigint NOT NULL,
    drafts bytea NOT NULL,
    seqs bigint[],
    moved_to bigint,
    answered timestamptz
);
CREATE INDEX batches_waiting ON batches (ticket) WHERE answered IS NULL;
CREATE INDEX batches_answered ON batches (answered) WHERE answered IS NOT NULL;

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% are never changed', TG_TABLE_NAME;
END;
$$;
CREATE TRIGGER entries_stay BEFORE DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER entries_keep BEFORE UPDATE ON entries FOR EACH ROW
    WHEN (NEW.data IS NOT NULL OR NEW.seq <> OLD.seq OR NEW.kind <> OLD.kind
          OR NEW.plan_id IS DISTINCT FROM OLD.plan_id OR NEW.effect IS DISTINCT FROM OLD.effect
          OR NEW.nodes <> OLD.nodes)
    EXECUTE FUNCTION refuse_change();
