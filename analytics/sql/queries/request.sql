-- Everything known of one request, by its id ($request_id).
FROM requests
WHERE request_id = $request_id;
