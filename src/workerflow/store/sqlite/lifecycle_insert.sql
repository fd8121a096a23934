-- One line of the lifecycle log.
insert into lifecycle_events (instance_key, number, type, recorded_at, reason) values (?1, ?2, ?3, ?4, ?5);
