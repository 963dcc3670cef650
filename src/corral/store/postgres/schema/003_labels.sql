-- An index of jobs by label. Labels of a job never change; rows of jobs that are no longer in the table of jobs are
-- never found. Keys and values are digests, because an index takes no long texts; texts with a NUL, which PostgreSQL
-- does not store, are left out.

CREATE TABLE job_labels (
    key   text   COLLATE "C" NOT NULL,  -- its MD5
    value text   COLLATE "C" NOT NULL,  -- its MD5
    seq   bigint NOT NULL,
    PRIMARY KEY (key, value, seq)
);

CREATE FUNCTION note_labels() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_labels
    SELECT md5(label ->> 0), md5(label ->> 1), NEW.seq FROM json_array_elements(NEW.labels::json) AS label
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER jobs_labelled AFTER INSERT ON jobs
FOR EACH ROW WHEN (NEW.labels <> '[]' AND position('\u0000' IN NEW.labels) = 0) EXECUTE FUNCTION note_labels();

INSERT INTO job_labels
SELECT md5(label ->> 0), md5(label ->> 1), jobs.seq FROM jobs, json_array_elements(jobs.labels::json) AS label
WHERE jobs.labels <> '[]' AND position('\u0000' IN jobs.labels) = 0
ON CONFLICT DO NOTHING;
