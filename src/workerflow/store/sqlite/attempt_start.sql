-- An attempt begins; its callback starts when this row is durable.
insert into attempts (instance_key, step_id, number, state, started_at) values (?1, ?2, ?3, 'started', ?4);
