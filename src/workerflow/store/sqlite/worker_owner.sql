-- Who has the file: for the message of an engine that cannot have it.
select process_id, incarnation from workers where worker_id = 1;
