-- The journal itself. Records are only ever added at the end, and removed from the front by archiving.
-- Texts are compared byte by byte (collation "C"), as SQLite does it.

CREATE TABLE records (
    seq     bigint  PRIMARY KEY,
    epoch   bigint  NOT NULL,
    format  integer NOT NULL,
    at_ms   bigint  NOT NULL,
    actor   text    COLLATE "C" NOT NULL,
    request text    COLLATE "C" NOT NULL,
    body    bytea   NOT NULL,
    hash    bytea   NOT NULL
);

-- One row: who may write, and the last record. Locked and changed by every transaction that writes, on condition of the
-- epoch: whoever has an older one changes nothing.
CREATE TABLE writer (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint  NOT NULL,
    seq   bigint  NOT NULL,
    hash  bytea   NOT NULL
) WITH (fillfactor = 10);
INSERT INTO writer (epoch, seq, hash) VALUES (0, 0, decode(repeat('00', 32), 'hex'));

-- One row: who leads, by the clock of this database. Apart from the row above, so that renewing waits for no writing.
CREATE TABLE leader (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    holder     text    NOT NULL,  -- which server; a restart in the same folder is the same one
    url        text    NOT NULL,  -- where it answers
    epoch      bigint  NOT NULL,
    session    integer NOT NULL,  -- of the connection that writes: pg_backend_pid()
    since      timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO leader (holder, url, epoch, session, since, renewed_at, expires_at)
    VALUES ('', '', 0, 0, 'epoch', 'epoch', 'epoch');

-- What was taken out of the front, in order. The last row is the anchor: the first record here follows its hash.
CREATE TABLE archives (
    last_seq  bigint PRIMARY KEY,
    last_hash bytea  NOT NULL,
    first_seq bigint NOT NULL,
    file      text   NOT NULL,
    sha256    text   NOT NULL
);

-- How far the records of the last archive are removed from this database already.
CREATE TABLE anchor (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    seq  bigint  NOT NULL,
    hash bytea   NOT NULL
);
INSERT INTO anchor (seq, hash) VALUES (0, decode(repeat('00', 32), 'hex'));

-- The state after a record, in parts; only to start faster.
CREATE TABLE images (
    seq    bigint  NOT NULL,
    part   integer NOT NULL,
    parts  integer NOT NULL,
    format integer NOT NULL,
    sha256 text    NOT NULL,  -- of the whole
    body   bytea   NOT NULL,
    PRIMARY KEY (seq, part)
);
ALTER TABLE images ALTER COLUMN body SET STORAGE EXTERNAL;  -- it is compressed already

-- Values of secrets, readable by whoever may read this database. Names and times are in the journal, values are not.
CREATE TABLE secrets (
    queue text  COLLATE "C" NOT NULL,
    name  text  COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (queue, name)
);
