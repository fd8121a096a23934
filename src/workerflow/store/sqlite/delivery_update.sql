-- A delivery was tried: attempts, next try, success, last error. Its next try is the instance's alarm.
update deliveries set attempts = ?2, next_attempt_at = ?3, delivered_at = ?4, last_error = ?5 where instance_key = ?1;
