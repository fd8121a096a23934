-- The accepted events of one instance in order of acceptance.
select number, name, payload, event_id, received_at, claimed_by, claimed_at
from inbound_events where instance_key = ?1 order by number;
