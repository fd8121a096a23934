-- What is kept for taking the instance up again.
update instances set alarm_at = ?2, owner = ?3, recoveries = ?4, held_reason = ?5, held_at = ?6
where instance_key = ?1;
