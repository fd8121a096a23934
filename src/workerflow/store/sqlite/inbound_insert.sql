-- An accepted event.
insert into inbound_events (instance_key, number, name, payload, event_id, received_at) values (?1, ?2, ?3, ?4, ?5, ?6);
