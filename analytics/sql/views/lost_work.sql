-- One row per killed executor: what it had computed and no attempt claims, that is, its steps after
-- the last report that arrived. The bill counts it as lost, beside the time between its last interval
-- and its exit. (Below zero: the report came through and the interval that belongs to it did not.)
CREATE OR REPLACE VIEW lost_work AS
WITH booked AS (
    SELECT
        executor,
        currency,
        any_value(pool) AS pool,
        max(end_ms) AS end_ms,
        sum(busy_ms) / 1000 AS busy_s,
        sum(busy_ms * accelerator_hour) / 3.6e6 AS busy_amount
    FROM intervals
    GROUP BY executor, currency
    HAVING sum(lost_ms) > 0
),
claimed AS (
    SELECT executor, currency, sum(accelerator_s) AS claimed_s, sum(amount) AS claimed_amount
    FROM attempt_costs
    GROUP BY executor, currency
),
rests AS (
    SELECT
        booked.*,
        busy_s - coalesce(claimed_s, 0) AS rest_s,
        busy_amount - coalesce(claimed_amount, 0) AS rest_amount
    FROM booked
    LEFT JOIN claimed USING (executor, currency)
)
SELECT
    executor,
    pool,
    currency,
    at_ms(end_ms) AS ended_at,
    -- Sums of many parts differ in their last digits; less than a microsecond is no work.
    if(abs(rest_s) < 1e-6, 0, rest_s) AS seconds,
    if(abs(rest_s) < 1e-6, 0, rest_amount) AS amount
FROM rests;
