-- A new incarnation of the one worker of a file. It only grows, so that an older one can never write again.
insert into workers (worker_id, incarnation, batch_number, process_id, started_at, heartbeat_at, workflows)
values (1, 1, 0, ?1, ?2, ?2, ?3)
on conflict (worker_id) do update set incarnation = incarnation + 1, batch_number = 0, process_id = ?1,
    started_at = ?2, heartbeat_at = ?2, workflows = ?3
returning incarnation;
