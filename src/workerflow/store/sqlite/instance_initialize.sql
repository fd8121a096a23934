-- The input is pinned.
update instances set status = 'initialized', input = ?2, updated_at = max(updated_at, ?3) where instance_key = ?1;
