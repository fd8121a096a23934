-- Mail that nobody has applied yet, oldest first. Without the hint SQLite walks through all mail ever sent.
select mail_id, instance_key, kind, name, payload, event_id, reason, sent_at from mail indexed by mail_untaken
where taken_at is null order by mail_id limit ?1;
