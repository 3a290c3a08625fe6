-- Cost by $dimension (tenant, model, pool, hour) of requests finished since $since (UTC timestamp).
FROM costs_since($dimension, $since)
ORDER BY CASE WHEN $dimension = 'hour' THEN name END, amount DESC, name;
