-- The newest pause or resume that is not applied yet.
select kind from mail where instance_key = ?1 and taken_at is null and kind in ('pause', 'resume', 'cancel')
order by mail_id desc limit 1;
