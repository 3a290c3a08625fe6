-- Cost of requests finished since a UTC timestamp, by 'tenant', 'model', 'pool' or 'hour':
--     FROM costs_since('tenant', TIMESTAMP '2026-01-31 00:00:00');
CREATE OR REPLACE MACRO costs_since(dimension, since) AS TABLE
SELECT
    CASE dimension
        WHEN 'tenant' THEN tenant
        WHEN 'model' THEN model
        WHEN 'pool' THEN pool
        WHEN 'hour' THEN strftime(hour, '%Y-%m-%d %H:00')
        ELSE error('costs_since: write tenant, model, pool or hour')
    END AS name,
    count(*) AS requests,
    sum(prompt_tokens)::BIGINT AS prompt_tokens,
    sum(cached_tokens)::BIGINT AS cached_tokens,
    sum(completion_tokens)::BIGINT AS completion_tokens,
    sum(accelerator_s) AS accelerator_s,
    sum(amount) AS amount,
    currency,
    per_1k(sum(prompt_amount), sum(prompt_tokens)) AS per_1k_prompt,
    per_1k(sum(completion_amount), sum(completion_tokens)) AS per_1k_completion,
    per_1k(sum(amount), sum(prompt_tokens + completion_tokens)) AS per_1k_tokens
FROM requests
WHERE finished_at >= since
GROUP BY name, currency;

-- The same over all time.
CREATE OR REPLACE VIEW costs_by_tenant AS
SELECT name AS tenant, * EXCLUDE (name) FROM costs_since('tenant', TIMESTAMP '-infinity');

CREATE OR REPLACE VIEW costs_by_model AS
SELECT name AS model, * EXCLUDE (name) FROM costs_since('model', TIMESTAMP '-infinity');

CREATE OR REPLACE VIEW costs_by_pool AS
SELECT name AS pool, * EXCLUDE (name) FROM costs_since('pool', TIMESTAMP '-infinity');

CREATE OR REPLACE VIEW costs_by_hour AS
SELECT name::TIMESTAMP AS hour, * EXCLUDE (name) FROM costs_since('hour', TIMESTAMP '-infinity');
