-- Instances that a worker had in memory when it ended.
select instance_key from instances where owner is not null order by instance_key;
