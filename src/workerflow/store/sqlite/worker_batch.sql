-- The number of the last batch that this incarnation committed.
select batch_number from workers where worker_id = ?1 and incarnation = ?2;
