-- The bill since $since (UTC timestamp): one row per pool, then the sum of all (pool is NULL).
FROM bill_since($since)
ORDER BY currency, pool NULLS LAST;
