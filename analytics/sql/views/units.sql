-- Small conversions that the other views use, and anyone may.
CREATE OR REPLACE MACRO at_ms(unix_ms) AS make_timestamp(CAST(round(unix_ms * 1000) AS BIGINT));
CREATE OR REPLACE MACRO per_1k(amount, tokens) AS 1000 * amount / nullif(tokens, 0);
CREATE OR REPLACE MACRO share(part, whole) AS part / nullif(whole, 0);
