-- A wait uses an event.
update inbound_events set claimed_by = ?3, claimed_at = max(?4, received_at) where instance_key = ?1 and number = ?2;
