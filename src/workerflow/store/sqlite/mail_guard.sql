-- Instances with untaken mail: they may not hibernate, time out or end yet.
select distinct instance_key from mail where taken_at is null;
