-- An index of records by job. The writer enters records that are older than this table in the background, the newest
-- first and a part at a time: a start does not wait for it.

CREATE TABLE job_records (
    job text   COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (job, seq)
);

-- One row: records up to this one are not entered yet.
CREATE TABLE job_records_begin (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    seq bigint  NOT NULL
);
INSERT INTO job_records_begin (seq) SELECT seq FROM writer;
