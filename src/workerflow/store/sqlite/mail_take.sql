-- Mail was applied.
update mail set taken_at = ?3, outcome = ?4 where instance_key = ?1 and mail_id = ?2;
