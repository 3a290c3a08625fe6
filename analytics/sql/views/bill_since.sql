-- The bill: all time of all executors at their price, since a UTC timestamp, and where it went.
-- One row per pool, and one for all pools together (pool IS NULL).
--   amount = busy + overhead + idle;   busy = requests + unreceipted + unattributed
-- overhead: startup, host, drain, lost. unreceipted: attempts whose request has no receipt (yet).
-- unattributed: busy time that no ended attempt claims: requests that run now. Where an executor
-- was killed such time is lost instead (lost_work), so nothing of it stays unattributed.
-- Shares are of seconds. per_1k_tokens carries idle and overhead too, unlike the costs_* views.
CREATE OR REPLACE MACRO bill_since(since) AS TABLE
WITH facts AS (
    SELECT
        pool,
        currency,
        (end_ms - start_ms) / 1000 AS total_s,
        startup_ms / 1000 AS startup_s,
        busy_ms / 1000 AS busy_s,
        host_ms / 1000 AS host_s,
        idle_ms / 1000 AS idle_s,
        drain_ms / 1000 AS drain_s,
        lost_ms / 1000 AS lost_s,
        startup_s + host_s + drain_s + lost_s AS overhead_s,
        accelerator_hour / 3600 AS price,
        total_s * price AS amount,
        busy_s * price AS busy_amount,
        overhead_s * price AS overhead_amount,
        idle_s * price AS idle_amount
    FROM intervals
    WHERE at_ms(end_ms) >= since
    UNION ALL BY NAME
    SELECT
        pool,
        currency,
        -lost_work.seconds AS busy_s,
        lost_work.seconds AS lost_s,
        -lost_work.amount AS busy_amount,
        lost_work.amount AS overhead_amount
    FROM lost_work
    WHERE ended_at >= since
    UNION ALL BY NAME
    SELECT
        pool,
        currency,
        CASE WHEN has_receipt THEN amount END AS requests_amount,
        CASE WHEN NOT has_receipt THEN amount END AS unreceipted_amount
    FROM attempt_costs
    WHERE finished_at >= since
    UNION ALL BY NAME
    SELECT pool, currency, 1 AS requests, prompt_tokens, completion_tokens
    FROM requests
    WHERE finished_at >= since
),
sums AS (
    SELECT
        pool,
        currency,
        coalesce(sum(requests), 0)::BIGINT AS requests,
        coalesce(sum(prompt_tokens), 0)::BIGINT AS prompt_tokens,
        coalesce(sum(completion_tokens), 0)::BIGINT AS completion_tokens,
        coalesce(sum(total_s), 0) AS total_s,
        coalesce(sum(startup_s), 0) AS startup_s,
        coalesce(sum(busy_s), 0) AS busy_s,
        coalesce(sum(host_s), 0) AS host_s,
        coalesce(sum(idle_s), 0) AS idle_s,
        coalesce(sum(drain_s), 0) AS drain_s,
        coalesce(sum(lost_s), 0) AS lost_s,
        coalesce(sum(amount), 0) AS amount,
        coalesce(sum(busy_amount), 0) AS busy_amount,
        coalesce(sum(overhead_amount), 0) AS overhead_amount,
        coalesce(sum(idle_amount), 0) AS idle_amount,
        coalesce(sum(requests_amount), 0) AS requests_amount,
        coalesce(sum(unreceipted_amount), 0) AS unreceipted_amount
    FROM facts
    GROUP BY GROUPING SETS ((pool, currency), (currency))
)
SELECT
    *,
    busy_amount - requests_amount - unreceipted_amount AS unattributed_amount,
    share(busy_s, total_s) AS busy_share,
    share(startup_s + host_s + drain_s + lost_s, total_s) AS overhead_share,
    share(idle_s, total_s) AS idle_share,
    per_1k(amount, prompt_tokens + completion_tokens) AS per_1k_tokens
FROM sums;

-- The bill over all time.
CREATE OR REPLACE VIEW bill AS
SELECT * EXCLUDE (pool) FROM bill_since(TIMESTAMP '-infinity') WHERE pool IS NULL;

CREATE OR REPLACE VIEW bill_by_pool AS
FROM bill_since(TIMESTAMP '-infinity') WHERE pool IS NOT NULL;

-- Does it add up? explained = requests + unreceipted + overhead + idle; difference = bill - explained.
-- It is near zero whenever nothing runs; untiled_s and gap_s are zero when intervals are sound.
CREATE OR REPLACE VIEW reconciliation AS
WITH tiling AS (
    SELECT pool, currency, sum(abs(gap_s)) AS gap_s, sum(untiled_s) AS untiled_s
    FROM executor_time
    GROUP BY pool, currency
)
SELECT
    pool,
    currency,
    requests_amount,
    unreceipted_amount,
    overhead_amount,
    idle_amount,
    requests_amount + unreceipted_amount + overhead_amount + idle_amount AS explained,
    amount AS bill,
    bill - explained AS difference,
    share(difference, bill) AS difference_share,
    gap_s,
    untiled_s
FROM bill_by_pool
LEFT JOIN tiling USING (pool, currency);
