-- An instance that another process may have made before.
insert into instances (instance_key, workflow, instance_id, nonce, status, created_at, updated_at)
select ?1, ?2, ?3, ?4, 'pending', ?5, ?5
where not exists (select 1 from instances where workflow = ?2 and instance_id = ?3);
