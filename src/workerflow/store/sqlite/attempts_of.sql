-- The attempts of one instance, oldest first within a step.
select step_id, number, state, started_at, ended_at, result_type, result_json, error_name, error_message, error_detail,
    next_attempt_at, counts, outcome_sequence
from attempts where instance_key = ?1 order by step_id, number;
