-- An index of records by job. The writer enters records that are older than this table in the background, the newest
-- first and a part at a time: a start does not wait for it.

CREATE TABLE job_records (
    job TEXT    NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (job, seq)
) WITHOUT ROWID;

-- One row: records up to this one are not entered yet.
CREATE TABLE job_records_begin (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    seq  INTEGER NOT NULL
);
INSERT INTO job_records_begin SELECT 1, seq FROM writer;
