-- The earliest alarm after a time.
select min(alarm_at) from instances where alarm_at > ?1;
