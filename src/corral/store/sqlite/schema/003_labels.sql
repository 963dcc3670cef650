-- Jobs by label, so that a question for a label costs what has it and not what there is. Labels of a job never change;
-- a row of a job that is no longer in its table is found by nobody.

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
