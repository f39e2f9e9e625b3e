-- Schema version 1. `sluicegate migrate` runs it in one transaction.
CREATE TABLE sluicegate_state (
    -- `store.key_prefix`, a byte for the kind of the row, and the name of the counter, budget or limit.
    key bytea PRIMARY KEY,
    -- The state, written by `src/store/postgres/rows.rs`.
    value bytea NOT NULL,
    -- The instant from which the row can be deleted: microseconds of the Unix epoch, by the server's
    -- clock. Negative: readers ignore the row (`PROPOSE` in statement.rs).
    empty_at bigint NOT NULL
) WITH (
    -- Free space in each page, so that an update stays in the page and needs no index entry.
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);

-- Compression costs time, and states are short.
ALTER TABLE sluicegate_state ALTER COLUMN value SET STORAGE EXTERNAL;
