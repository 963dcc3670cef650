-- The journal itself. Records are only ever added at the end, and removed from the front by archiving.

CREATE TABLE records (
    seq     INTEGER PRIMARY KEY,
    epoch   INTEGER NOT NULL,
    format  INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    actor   TEXT    NOT NULL,
    request TEXT    NOT NULL,
    body    BLOB    NOT NULL,
    hash    BLOB    NOT NULL
);

-- One row: the epoch of the writer, and the last record. Every transaction that writes changes it, on condition of the
-- epoch.
CREATE TABLE writer (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    hash  BLOB    NOT NULL
);
INSERT INTO writer VALUES (1, 0, 0, zeroblob(32));

-- Archives, in order. The last row is the anchor: the first record of this database follows its hash.
CREATE TABLE archives (
    last_seq  INTEGER PRIMARY KEY,
    last_hash BLOB    NOT NULL,
    first_seq INTEGER NOT NULL,
    file      TEXT    NOT NULL,
    sha256    TEXT    NOT NULL
);

-- The last record that was removed from this database after archiving.
CREATE TABLE anchor (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    seq  INTEGER NOT NULL,
    hash BLOB    NOT NULL
);
INSERT INTO anchor VALUES (1, 0, zeroblob(32));
