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

-- One row: the epoch of the writer, and the last record. Every transaction that writes locks and changes it, on
-- condition of the epoch: a server with an older epoch changes nothing.
CREATE TABLE writer (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint  NOT NULL,
    seq   bigint  NOT NULL,
    hash  bytea   NOT NULL
) WITH (fillfactor = 10);
INSERT INTO writer (epoch, seq, hash) VALUES (0, 0, decode(repeat('00', 32), 'hex'));

-- One row: the leader, by the clock of this database. Separate from the row above, so that renewing does not wait for
-- writing.
CREATE TABLE leader (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    holder     text    NOT NULL,  -- the id of the server; a restart in the same folder has the same
    url        text    NOT NULL,  -- of the server
    epoch      bigint  NOT NULL,
    session    integer NOT NULL,  -- of the connection that writes: pg_backend_pid()
    since      timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO leader (holder, url, epoch, session, since, renewed_at, expires_at)
    VALUES ('', '', 0, 0, 'epoch', 'epoch', 'epoch');

-- Archives, in order. The last row is the anchor: the first record of this database follows its hash.
CREATE TABLE archives (
    last_seq  bigint PRIMARY KEY,
    last_hash bytea  NOT NULL,
    first_seq bigint NOT NULL,
    file      text   NOT NULL,
    sha256    text   NOT NULL
);

-- The last record that was removed from this database after archiving.
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

-- Values of secrets, encrypted. Names and times are in the journal, values are not.
CREATE TABLE secrets (
    queue text  COLLATE "C" NOT NULL,
    name  text  COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (queue, name)
);
