-- A page of instances, newest first, after the creation time and key of the last of the page before. A filter reads on
-- along the same index until the page is full: an index per filter would cost every creation for a rare question.
select instance_key, workflow, instance_id, nonce, status, null, null, null, null,
    null, null, held_reason, held_at, alarm_at, owner, recoveries, created_at, updated_at
from instances indexed by instances_created
where (created_at, instance_key) < (?3, ?4) and (?1 is null or workflow = ?1) and (?2 is null or status = ?2)
order by created_at desc, instance_key desc limit ?5;
