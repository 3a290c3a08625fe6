-- One row per executor: where its time went, from its first to its last report, and what that cost.
-- Of a killed executor lost_s includes what it had computed and no attempt claims (lost_work).
-- gap_s: time that no interval covers (negative: covered twice). untiled_s: parts that do not add up.
CREATE OR REPLACE VIEW executor_time AS
SELECT
    executor,
    any_value(pool) AS pool,
    any_value(model) AS model,
    max_by(zone, end_ms) AS zone,
    max_by(device, end_ms) AS device,
    max_by(fraction, end_ms) AS fraction,
    max(fingerprint) AS fingerprint,
    max(generation) AS generation,
    at_ms(min(start_ms)) AS started_at,
    at_ms(max(end_ms)) AS ended_at,
    sum(end_ms - start_ms) / 1000 AS total_s,
    sum(startup_ms) / 1000 AS startup_s,
    sum(busy_ms) / 1000 - coalesce(any_value(seconds), 0) AS busy_s,
    sum(host_ms) / 1000 AS host_s,
    sum(idle_ms) / 1000 AS idle_s,
    sum(drain_ms) / 1000 AS drain_s,
    sum(lost_ms) / 1000 + coalesce(any_value(seconds), 0) AS lost_s,
    share(sum(idle_ms), sum(end_ms - start_ms)) AS idle_share,
    sum((end_ms - start_ms) * accelerator_hour) / 3.6e6 AS amount,
    sum(idle_ms * accelerator_hour) / 3.6e6 AS idle_amount,
    any_value(currency) AS currency,
    (max(end_ms) - min(start_ms) - sum(end_ms - start_ms)) / 1000 AS gap_s,
    sum(abs(
        end_ms - start_ms - startup_ms - busy_ms - host_ms - idle_ms - drain_ms - lost_ms
    )) / 1000 AS untiled_s
FROM intervals
LEFT JOIN (
    SELECT executor, sum(seconds) AS seconds FROM lost_work GROUP BY executor
) USING (executor)
GROUP BY executor;
