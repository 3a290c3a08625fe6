-- One row per accepted request that has ended: what was delivered (its receipt) and what it took
-- (all its attempts). Times are UTC. `attempts` = 0: it never ran, or its executor has not reported yet.
CREATE OR REPLACE VIEW requests AS
WITH taken AS (
    SELECT
        request_id,
        count(*) AS attempts,
        count(*) FILTER (finish = 'lost') AS lost_attempts,
        max_by(executor, attempt) AS last_executor,
        sum(computed_tokens)::BIGINT AS computed_tokens,
        sum(completion_tokens)::BIGINT AS sampled_tokens,
        sum(accelerator_s) AS accelerator_s,
        sum(amount) AS amount,
        sum(prompt_amount) AS prompt_amount,
        sum(completion_amount) AS completion_amount,
        any_value(currency) AS currency
    FROM attempt_costs
    GROUP BY request_id
)
SELECT
    receipts.request_id,
    receipts.tenant,
    receipts.route,
    receipts.pool,
    receipts.model,
    coalesce(delivered.executor, taken.last_executor) AS executor,
    delivered.device,
    delivered.zone,
    delivered.fingerprint,
    receipts.generation,
    receipts.reason,
    receipts.door,
    receipts.priority,
    receipts.egress,
    receipts.key_id,
    receipts.finish_reason,
    receipts.error_code,
    receipts.resumed,
    receipts.sibling_of,
    receipts.choice,
    receipts.prompt_tokens,
    receipts.cached_tokens,
    receipts.completion_tokens,
    coalesce(taken.computed_tokens, 0) AS computed_tokens,
    coalesce(taken.sampled_tokens, 0) AS sampled_tokens,
    receipts.queue_ms,
    receipts.ttft_ms,
    receipts.tpot_ms,
    receipts.e2e_ms,
    coalesce(taken.attempts, 0) AS attempts,
    coalesce(taken.lost_attempts, 0) AS lost_attempts,
    coalesce(taken.accelerator_s, 0) AS accelerator_s,
    coalesce(taken.amount, 0) AS amount,
    coalesce(taken.prompt_amount, 0) AS prompt_amount,
    coalesce(taken.completion_amount, 0) AS completion_amount,
    coalesce(taken.currency, (SELECT max_by(currency, start_ms) FROM intervals)) AS currency,
    at_ms(receipts.received_ms) AS received_at,
    at_ms(receipts.finished_ms) AS finished_at,
    date_trunc('hour', at_ms(receipts.finished_ms)) AS hour,
    receipts.stages,
    receipts.metadata
FROM receipts
LEFT JOIN taken ON taken.request_id = receipts.request_id
LEFT JOIN closed_attempts AS delivered
    ON delivered.request_id = receipts.request_id AND delivered.attempt = receipts.attempt;
