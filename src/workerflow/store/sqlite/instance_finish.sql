-- The end, with the result or the failure. Owner and alarm go with it.
update instances set status = ?2, result_type = ?3, result_json = ?4, failure_name = ?5, failure_message = ?6,
    failure_detail = ?7, owner = null, alarm_at = null, updated_at = max(updated_at, ?8)
where instance_key = ?1;
