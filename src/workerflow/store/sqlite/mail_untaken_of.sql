-- The same of one instance.
select mail_id, instance_key, kind, name, payload, event_id, reason, sent_at from mail indexed by mail_untaken_of
where taken_at is null and instance_key = ?1 order by mail_id;
