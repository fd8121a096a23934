-- An attempt ends.
update attempts set state = ?4, ended_at = ?5, result_type = ?6, result_json = ?7, error_name = ?8, error_message = ?9,
    error_detail = ?10, next_attempt_at = ?11, counts = ?12, outcome_sequence = ?13
where instance_key = ?1 and step_id = ?2 and number = ?3;
