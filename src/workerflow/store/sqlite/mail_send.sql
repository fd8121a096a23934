-- Mail for an instance. A second create, or a repeated event id, changes nothing.
insert into mail (instance_key, kind, name, payload, event_id, reason, sent_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict do nothing
returning mail_id;
