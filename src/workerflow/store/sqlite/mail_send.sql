-- Mail for an instance. A second create, or a repeated event id, changes nothing.
insert into mail (instance_key, kind, name, payload, event_id, reason, sent_at)
select ?1, ?2, ?3, ?4, ?5, ?6, ?7
where not (?2 = 'create' and exists (select 1 from mail where instance_key = ?1 and kind = 'create'))
    and not exists (select 1 from mail where instance_key = ?1 and event_id = ?5)
returning mail_id;
