-- One instance by key.
select instance_key, workflow, instance_id, nonce, status, input, result_type, result_json, failure_name,
    failure_message, failure_detail, held_reason, held_at, alarm_at, owner, recoveries, created_at, updated_at
from instances where instance_key = ?1;
