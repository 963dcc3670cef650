-- How an attempt failed first, as JSON; empty: it did not fail by itself, or this is not known.

ALTER TABLE attempts ADD COLUMN first_failure TEXT NOT NULL DEFAULT '';
