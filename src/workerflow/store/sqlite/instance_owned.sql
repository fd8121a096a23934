-- Instances that a worker had in memory when it ended.
select instance_key from instances indexed by instances_owner where owner is not null;
