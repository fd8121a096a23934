-- A step is no longer asked for, or (null) is asked for again.
update steps set abandoned_at = ?3 where instance_key = ?1 and step_id = ?2;
