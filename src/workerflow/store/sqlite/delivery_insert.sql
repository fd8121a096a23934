-- A completion to deliver, due at once; the instance's alarm says so.
insert into deliveries (instance_key, number, next_attempt_at) values (?1, ?2, ?3);
