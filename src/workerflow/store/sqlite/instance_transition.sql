-- A change of status that ends nothing.
update instances set status = ?2, updated_at = max(updated_at, ?3) where instance_key = ?1;
