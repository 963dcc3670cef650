-- Jobs by label, so that a question for a label costs what has it and not what there is. Labels of a job never change;
-- a row of a job that is no longer in its table is found by nobody. Digests, for an index takes no long texts; what
-- PostgreSQL takes for no text at all (a NUL) is left out.

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
