-- One row per attempt that has ended. An attempt of a killed executor is closed as `lost`, from the
-- last report of what it had taken; should the executor's own word come all the same, that counts.
CREATE OR REPLACE VIEW closed_attempts AS
FROM attempts
WHERE
    finish <> 'lost'
    OR NOT EXISTS (
        FROM attempts AS final
        WHERE
            final.request_id = attempts.request_id
            AND final.attempt = attempts.attempt
            AND final.finish <> 'lost'
    );
