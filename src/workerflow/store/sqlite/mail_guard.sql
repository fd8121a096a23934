-- Which of these instances (a JSON list of keys) have untaken mail: they may not hibernate, time out or end yet.
select distinct mail.instance_key from json_each(?1) as guarded
cross join mail indexed by mail_untaken_of
where mail.taken_at is null and mail.instance_key = guarded.value;
