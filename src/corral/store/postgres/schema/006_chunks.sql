-- Figures over time, in chunks of many points. May be deleted without harm.
CREATE TABLE chunks (
    name text NOT NULL,
    step_ms bigint NOT NULL,
    start_ms bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (name, step_ms, start_ms)
);
