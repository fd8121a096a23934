-- A new step.
insert into steps (instance_key, step_id, ordinal, kind, parent_step_id, max_attempts, state, wake_at, event_name,
    timeout_at, created_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);
