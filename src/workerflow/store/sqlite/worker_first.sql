-- The first worker of a file.
insert into workers (worker_id, incarnation, batch_number, process_id, started_at, heartbeat_at, workflows)
values (1, 1, 0, ?1, ?2, ?2, ?3)
returning incarnation;
