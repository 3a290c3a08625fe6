-- Usage events as they came, one table a kind. `key` is the event's own key: the same event a second
-- time changes nothing. Times ending in _ms are unix milliseconds (UTC).
CREATE TABLE IF NOT EXISTS meta (
    key VARCHAR PRIMARY KEY,
    value VARCHAR NOT NULL
);

-- What one run of a request on one executor took.
CREATE TABLE IF NOT EXISTS attempts (
    key VARCHAR PRIMARY KEY,
    request_id VARCHAR NOT NULL,
    attempt INTEGER NOT NULL,
    tenant VARCHAR NOT NULL,
    pool VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    executor VARCHAR NOT NULL,
    generation BIGINT NOT NULL,
    finish VARCHAR NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    computed_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    accelerator_s DOUBLE NOT NULL,
    prefill_s DOUBLE,
    started_ms DOUBLE NOT NULL,
    finished_ms DOUBLE NOT NULL,
    accelerator_hour DOUBLE NOT NULL,
    currency VARCHAR NOT NULL
);

-- What was delivered to the caller; one for each accepted request.
CREATE TABLE IF NOT EXISTS receipts (
    key VARCHAR PRIMARY KEY,
    request_id VARCHAR NOT NULL,
    tenant VARCHAR NOT NULL,
    route VARCHAR NOT NULL,
    pool VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    door VARCHAR NOT NULL,
    priority VARCHAR NOT NULL,
    generation BIGINT NOT NULL,
    egress VARCHAR NOT NULL,
    finish_reason VARCHAR NOT NULL,
    error_code VARCHAR,
    attempt INTEGER NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    queue_ms DOUBLE,
    ttft_ms DOUBLE,
    tpot_ms DOUBLE,
    e2e_ms DOUBLE NOT NULL,
    received_ms DOUBLE NOT NULL,
    finished_ms DOUBLE NOT NULL,
    stages MAP(VARCHAR, DOUBLE) NOT NULL,
    metadata MAP(VARCHAR, VARCHAR) NOT NULL
);

-- A stretch of an executor's life and what it was spent on.
CREATE TABLE IF NOT EXISTS intervals (
    key VARCHAR PRIMARY KEY,
    executor VARCHAR NOT NULL,
    pool VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    zone VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    generation BIGINT NOT NULL,
    start_ms DOUBLE NOT NULL,
    end_ms DOUBLE NOT NULL,
    startup_ms DOUBLE NOT NULL,
    busy_ms DOUBLE NOT NULL,
    host_ms DOUBLE NOT NULL,
    idle_ms DOUBLE NOT NULL,
    drain_ms DOUBLE NOT NULL,
    lost_ms DOUBLE NOT NULL,
    accelerator_hour DOUBLE NOT NULL,
    currency VARCHAR NOT NULL
);

-- What came as a usage event and could not be read as one: set aside, never dropped.
-- The key is the place in the stream: a second delivery of the same message changes nothing.
CREATE TABLE IF NOT EXISTS rejected (
    key VARCHAR PRIMARY KEY,
    subject VARCHAR NOT NULL,
    stored_ms DOUBLE NOT NULL,
    raw VARCHAR NOT NULL,
    reason VARCHAR NOT NULL
);
