-- A new instance, pending.
insert into instances (instance_key, workflow, instance_id, nonce, status, created_at, updated_at)
values (?1, ?2, ?3, ?4, 'pending', ?5, ?5);
