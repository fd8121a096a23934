-- Instances whose alarm has come, earliest first.
select instance_key from instances where alarm_at <= ?1 order by alarm_at limit ?2;
