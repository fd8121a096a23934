-- Whether an event with this id was accepted, or is in the mail.
select 1 from inbound_events where instance_key = ?1 and event_id = ?2
union all
select 1 from mail where instance_key = ?1 and event_id = ?2;
