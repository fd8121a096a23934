-- The completion delivery of one instance.
select attempts, next_attempt_at, delivered_at from deliveries where instance_key = ?1;
