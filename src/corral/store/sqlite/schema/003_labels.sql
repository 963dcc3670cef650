-- An index of jobs by label. Labels of a job never change; rows of jobs that are no longer in the table of jobs are
-- never found.

CREATE TABLE job_labels (
    key   TEXT    NOT NULL,
    value TEXT    NOT NULL,
    seq   INTEGER NOT NULL,
    PRIMARY KEY (key, value, seq)
) WITHOUT ROWID;

CREATE TRIGGER jobs_labelled AFTER INSERT ON jobs WHEN NEW.labels <> '[]'
BEGIN
    INSERT OR IGNORE INTO job_labels
    SELECT json_extract(label.value, '$[0]'), json_extract(label.value, '$[1]'), NEW.seq
    FROM json_each(NEW.labels) AS label;
END;

INSERT OR IGNORE INTO job_labels
SELECT json_extract(label.value, '$[0]'), json_extract(label.value, '$[1]'), jobs.seq
FROM jobs, json_each(jobs.labels) AS label WHERE jobs.labels <> '[]';
