-- What can be looked up, folded from the records (corral.store.projection) and rebuilt from them at any time.
-- Columns are in the order of the fields of the rows in corral.store.lookup.

CREATE TABLE jobs (
    seq          bigint  PRIMARY KEY,  -- of the record it was submitted by
    id           text    COLLATE "C" NOT NULL UNIQUE,
    name         text    COLLATE "C" NOT NULL,
    queue        text    COLLATE "C" NOT NULL,
    "user"       text    COLLATE "C" NOT NULL,
    actor        text    COLLATE "C" NOT NULL,
    request      text    COLLATE "C" NOT NULL,
    fingerprint  text    COLLATE "C" NOT NULL,
    priority     bigint  NOT NULL,
    state        text    COLLATE "C" NOT NULL,
    held         boolean NOT NULL,
    submitted_ms bigint  NOT NULL,
    started_ms   bigint,
    ended_ms     bigint,
    exit_code    bigint,
    failure      text    COLLATE "C",
    why          text    COLLATE "C" NOT NULL,
    gpu_milli    bigint  NOT NULL,
    tasks        bigint  NOT NULL,
    attempts     bigint  NOT NULL,
    array_size   bigint  NOT NULL,
    labels       text    COLLATE "C" NOT NULL,  -- JSON: pairs
    gangs        bigint  NOT NULL,
    starting     bigint  NOT NULL,
    running      bigint  NOT NULL,
    stopping     bigint  NOT NULL,
    failed       bigint  NOT NULL,
    cancelled    bigint  NOT NULL,
    over         bigint  NOT NULL
);

-- A list of jobs is read in the order of seq, from one of these or from several that are merged.
CREATE INDEX jobs_by_state ON jobs (state, seq);
CREATE INDEX jobs_by_user  ON jobs ("user", state, seq);
CREATE INDEX jobs_by_queue ON jobs (queue, state, seq);
CREATE INDEX jobs_by_name  ON jobs (name, seq) WHERE name <> '';
CREATE INDEX jobs_by_request ON jobs (request, actor, seq) WHERE request <> '';

CREATE TABLE attempts (
    job         text    COLLATE "C" NOT NULL,
    gang        text    COLLATE "C" NOT NULL,
    attempt     bigint  NOT NULL,
    role        text    COLLATE "C" NOT NULL,
    "index"     bigint,
    state       text    COLLATE "C" NOT NULL,
    placed_ms   bigint  NOT NULL,
    started_ms  bigint,
    ended_ms    bigint,
    gpu_milli   bigint  NOT NULL,
    seats       text    COLLATE "C" NOT NULL,  -- JSON
    spares      bigint  NOT NULL,
    exit_code   bigint,
    failure     text    COLLATE "C",
    cause       text    COLLATE "C",
    beneficiary text    COLLATE "C" NOT NULL,
    lost_gpu_ms bigint  NOT NULL,
    saved_step  bigint,
    saved_ms    bigint,
    PRIMARY KEY (job, gang, attempt)
);

CREATE INDEX attempts_open ON attempts (placed_ms) WHERE ended_ms IS NULL;

CREATE TABLE usage (
    queue       text    COLLATE "C" NOT NULL,
    "user"      text    COLLATE "C" NOT NULL,
    day         text    COLLATE "C" NOT NULL,
    gpu_ms      bigint  NOT NULL,
    lost_gpu_ms bigint  NOT NULL,
    jobs        bigint  NOT NULL,
    PRIMARY KEY (day, queue, "user")
);

CREATE TABLE nodes (
    name text COLLATE "C" PRIMARY KEY,
    spec text COLLATE "C" NOT NULL  -- JSON
);

-- Submissions whose records were archived: what the jobs asked for can still be shown. Not a projection.
CREATE TABLE submissions (
    seq    bigint  PRIMARY KEY,
    format bigint  NOT NULL,
    body   bytea   NOT NULL  -- compressed by zlib
);
