-- A sleep or a wait has its outcome.
update steps set state = ?3, resolved_at = ?4, outcome_sequence = ?5 where instance_key = ?1 and step_id = ?2;
