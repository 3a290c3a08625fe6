-- One row per attempt that has ended: its price, and how much of it went into the prompt.
-- Where prefill time was not measured, each row computed is taken to cost the same.
CREATE OR REPLACE VIEW attempt_costs AS
SELECT
    *,
    accelerator_s * accelerator_hour / 3600 AS amount,
    amount * coalesce(
        share(prefill_s, accelerator_s),
        share(least(prompt_tokens - cached_tokens, computed_tokens), computed_tokens),
        0
    ) AS prompt_amount,
    amount - prompt_amount AS completion_amount,
    at_ms(started_ms) AS started_at,
    at_ms(finished_ms) AS finished_at,
    EXISTS (FROM receipts WHERE receipts.request_id = closed_attempts.request_id) AS has_receipt
FROM closed_attempts;
