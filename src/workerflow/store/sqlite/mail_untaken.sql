-- Mail that nobody has applied yet, oldest first.
select mail_id, instance_key, kind, name, payload, event_id, reason, sent_at from mail
where taken_at is null order by mail_id limit ?1;
