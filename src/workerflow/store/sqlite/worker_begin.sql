-- The next incarnation of the one worker of a file. It only grows, so that an older one can never write again.
update workers set incarnation = incarnation + 1, batch_number = 0, process_id = ?1, started_at = ?2,
    heartbeat_at = ?2, workflows = ?3
where worker_id = 1
returning incarnation;
