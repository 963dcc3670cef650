-- What can be looked up, folded from the records (corral.store.projection) and rebuilt from them at any time.
-- Columns are in the order of the fields of the rows in corral.store.lookup.

CREATE TABLE jobs (
    seq          INTEGER PRIMARY KEY,  -- of the record it was submitted by
    id           TEXT    NOT NULL UNIQUE,
    name         TEXT    NOT NULL,
    queue        TEXT    NOT NULL,
    user         TEXT    NOT NULL,
    actor        TEXT    NOT NULL,
    request      TEXT    NOT NULL,
    fingerprint  TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    state        TEXT    NOT NULL,
    held         INTEGER NOT NULL,
    submitted_ms INTEGER NOT NULL,
    started_ms   INTEGER,
    ended_ms     INTEGER,
    exit_code    INTEGER,
    failure      TEXT,
    why          TEXT    NOT NULL,
    gpu_milli    INTEGER NOT NULL,
    tasks        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    array_size   INTEGER NOT NULL,
    labels       TEXT    NOT NULL,  -- JSON: pairs
    gangs        INTEGER NOT NULL,
    starting     INTEGER NOT NULL,
    running      INTEGER NOT NULL,
    stopping     INTEGER NOT NULL,
    failed       INTEGER NOT NULL,
    cancelled    INTEGER NOT NULL,
    over         INTEGER NOT NULL
);

-- A list of jobs is read in the order of seq, from one of these or from several that are merged.
CREATE INDEX jobs_by_state ON jobs (state, seq);
CREATE INDEX jobs_by_user  ON jobs (user, state, seq);
CREATE INDEX jobs_by_queue ON jobs (queue, state, seq);
CREATE INDEX jobs_by_name  ON jobs (name, seq) WHERE name <> '';
CREATE INDEX jobs_by_request ON jobs (request, actor, seq) WHERE request <> '';

CREATE TABLE attempts (
    job         TEXT    NOT NULL,
    gang        TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    role        TEXT    NOT NULL,
    "index"     INTEGER,
    state       TEXT    NOT NULL,
    placed_ms   INTEGER NOT NULL,
    started_ms  INTEGER,
    ended_ms    INTEGER,
    gpu_milli   INTEGER NOT NULL,
    seats       TEXT    NOT NULL,  -- JSON
    spares      INTEGER NOT NULL,
    exit_code   INTEGER,
    failure     TEXT,
    cause       TEXT,
    beneficiary TEXT    NOT NULL,
    lost_gpu_ms INTEGER NOT NULL,
    saved_step  INTEGER,
    saved_ms    INTEGER,
    PRIMARY KEY (job, gang, attempt)
) WITHOUT ROWID;

CREATE INDEX attempts_open ON attempts (placed_ms) WHERE ended_ms IS NULL;

CREATE TABLE usage (
    queue       TEXT    NOT NULL,
    user        TEXT    NOT NULL,
    day         TEXT    NOT NULL,
    gpu_ms      INTEGER NOT NULL,
    lost_gpu_ms INTEGER NOT NULL,
    jobs        INTEGER NOT NULL,
    PRIMARY KEY (day, queue, user)
) WITHOUT ROWID;

CREATE TABLE nodes (
    name TEXT PRIMARY KEY,
    spec TEXT NOT NULL  -- JSON
) WITHOUT ROWID;

-- Submissions whose records were archived: what the jobs asked for can still be shown. Not a projection.
CREATE TABLE submissions (
    seq    INTEGER PRIMARY KEY,
    format INTEGER NOT NULL,
    body   BLOB    NOT NULL  -- compressed by zlib
);
