-- The first statement of every batch: only the present incarnation may write, and only its next batch.
update workers set batch_number = ?3
where worker_id = ?1 and incarnation = ?2 and batch_number = ?3 - 1;
