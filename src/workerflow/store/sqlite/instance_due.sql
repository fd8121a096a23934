-- Instances out of memory whose alarm has come, earliest first.
select instance_key from instances where alarm_at <= ?1 and owner is null order by alarm_at limit ?2;
