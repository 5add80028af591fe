-- Another replica numbers and signs what waits here, so it must know that a holder of the key wrote
-- it: `seal` is a signature over the batch, and `after` the size of the log when it was written, so
-- that an old batch cannot be put back.
ALTER TABLE batches ADD COLUMN after bigint;
ALTER TABLE batches ADD COLUMN seal bytea;
