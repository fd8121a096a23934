-- The lifecycle log of one instance.
select number, type, recorded_at, reason from lifecycle_events where instance_key = ?1 order by number;
