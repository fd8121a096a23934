-- A page of instances, newest first.
select instance_key, workflow, instance_id, nonce, status, null, null, null, null,
    null, null, held_reason, held_at, alarm_at, owner, recoveries, created_at, updated_at
from instances
where (?1 is null or workflow = ?1) and (?2 is null or status = ?2)
    and (?3 is null or (created_at, instance_key) < (?3, ?4))
order by created_at desc, instance_key desc limit ?5;
