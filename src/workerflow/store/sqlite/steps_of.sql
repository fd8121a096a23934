-- The steps of one instance in creation order.
select step_id, ordinal, kind, parent_step_id, max_attempts, state, wake_at, event_name, timeout_at, created_at,
    resolved_at, outcome_sequence, abandoned_at
from steps where instance_key = ?1 order by ordinal;
