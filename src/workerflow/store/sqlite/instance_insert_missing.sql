-- An instance that another process may be making at the same moment.
insert into instances (instance_key, workflow, instance_id, nonce, status, created_at, updated_at)
values (?1, ?2, ?3, ?4, 'pending', ?5, ?5)
on conflict do nothing;
