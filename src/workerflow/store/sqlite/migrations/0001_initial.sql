-- The first schema. Every rule of the engine stands here again, as a constraint or a trigger: a bug or a hand at the
-- database meets a refusal instead of a damaged instance.
--
-- Times are integer milliseconds since 1970, UTC. JSON is stored as text. Rows of an instance carry its key.
--
-- "insert or replace" takes the row in its way out without any delete trigger. So each table refuses to insert a row
-- that meets another, and no statement here may rely on "on conflict".

create table workerflow_meta (
    only_row integer primary key check (only_row = 1),
    schema_version integer not null,
    created_at integer not null check (created_at >= 0)
) strict;

create trigger workerflow_meta_never_replaced before insert on workerflow_meta
when exists (select 1 from workerflow_meta)
begin select raise(abort, 'the schema version is never replaced'); end;

create trigger workerflow_meta_delete before delete on workerflow_meta
begin select raise(abort, 'the schema version is never deleted'); end;

-- One row per worker. Lease and heartbeat are for stores with many workers; here the file lock stands for them.
create table workers (
    worker_id integer primary key,
    incarnation integer not null check (incarnation >= 1),
    batch_number integer not null check (batch_number >= 0),
    process_id integer not null,
    started_at integer not null check (started_at >= 0),
    heartbeat_at integer not null check (heartbeat_at >= 0),
    lease_expires_at integer check (lease_expires_at >= 0),
    workflows text not null check (json_valid(workflows))
) strict;

create trigger workers_never_replaced before insert on workers
when exists (select 1 from workers where worker_id = new.worker_id)
begin select raise(abort, 'a worker is never replaced'); end;

create trigger workers_delete before delete on workers
begin select raise(abort, 'a worker is never deleted: its incarnation would begin anew'); end;

create trigger workers_only_grow before update on workers
when new.incarnation < old.incarnation or (new.incarnation = old.incarnation and new.batch_number < old.batch_number)
begin select raise(abort, 'incarnation and batch number of a worker only grow'); end;

-- ``purging`` marks an instance that is being deleted: only then may its rows go.
create table instances (
    instance_key integer primary key,
    workflow text not null check (workflow <> ''),
    instance_id text not null check (instance_id <> ''),
    nonce text not null,
    status text not null check (
        status in ('pending', 'initialized', 'running', 'paused', 'completed', 'failed', 'cancelled')
    ),
    input text check (input is null or json_valid(input)),
    result_type text check (result_type in ('json', 'none')),
    result_json text check (result_json is null or json_valid(result_json)),
    failure_name text check (failure_name <> ''),
    failure_message text,
    failure_detail text check (failure_detail is null or json_valid(failure_detail)),
    held_reason text,
    held_at integer check (held_at >= 0),
    alarm_at integer check (alarm_at >= 0),
    owner integer,
    recoveries integer not null default 0 check (recoveries >= 0),
    purging integer not null default 0 check (purging in (0, 1)),
    created_at integer not null check (created_at >= 0),
    updated_at integer not null,
    unique (workflow, instance_id),
    check (updated_at >= created_at),
    check ((held_reason is null) = (held_at is null)),
    check (status <> 'pending' or input is null),
    check ((result_type is null) = (status <> 'completed')),
    check ((result_json is null) = (coalesce(result_type, 'none') = 'none')),
    check ((failure_message is null) = (status <> 'failed')),
    check (status = 'failed' or (failure_name is null and failure_detail is null)),
    check (status not in ('completed', 'failed', 'cancelled') or owner is null)
) strict;

-- instance_due, instance_next_alarm: looked at whenever an alarm may have come.
create index instances_alarm on instances (alarm_at) where alarm_at is not null;
-- instance_owned: what a start has to take over, among any number of hibernating ones.
create index instances_owner on instances (owner) where owner is not null;
-- instance_list: pages, newest first.
create index instances_created on instances (created_at, instance_key);

create trigger instances_begin_pending before insert on instances
when new.status <> 'pending'
begin select raise(abort, 'an instance must begin as pending'); end;

create trigger instances_never_replaced before insert on instances
when exists (select 1 from instances where instance_key = new.instance_key)
    or exists (select 1 from instances where workflow = new.workflow and instance_id = new.instance_id)
begin select raise(abort, 'an instance is never replaced'); end;

create trigger instances_fixed_columns before update on instances
when new.instance_key <> old.instance_key or new.workflow <> old.workflow or new.instance_id <> old.instance_id
    or new.nonce <> old.nonce or new.created_at <> old.created_at or new.updated_at < old.updated_at
    or (new.input is not old.input and old.status <> 'pending')
    or (old.status in ('completed', 'failed', 'cancelled') and (
        new.result_type is not old.result_type or new.result_json is not old.result_json
        or new.failure_name is not old.failure_name or new.failure_message is not old.failure_message
        or new.failure_detail is not old.failure_detail))
begin select raise(abort, 'identity, creation, input and outcome of an instance never change'); end;

create trigger instances_transitions before update of status on instances
when new.status <> old.status and not (
    (old.status = 'pending' and new.status in ('initialized', 'cancelled'))
    or (old.status = 'initialized' and new.status in ('running', 'cancelled'))
    or (old.status = 'running' and new.status in ('paused', 'completed', 'failed', 'cancelled'))
    or (old.status = 'paused' and new.status in ('running', 'cancelled')))
begin select raise(abort, 'illegal status transition'); end;

create trigger instances_end_without_attempts before update of status on instances
when new.status in ('completed', 'failed', 'cancelled') and exists (
    select 1 from attempts where attempts.instance_key = new.instance_key and attempts.state = 'started')
begin select raise(abort, 'an instance cannot end while an attempt is started'); end;

create trigger instances_delete before delete on instances
when old.purging = 0
begin select raise(abort, 'an instance may be deleted only while it is being purged'); end;

create table steps (
    instance_key integer not null references instances,
    step_id text not null check (step_id <> ''),
    ordinal integer not null check (ordinal >= 1),
    kind text not null check (kind in ('run', 'sleep', 'wait')),
    parent_step_id text,
    max_attempts integer check (max_attempts >= 1),
    state text,
    wake_at integer check (wake_at >= 0),
    event_name text check (event_name <> ''),
    timeout_at integer check (timeout_at >= 0),
    created_at integer not null check (created_at >= 0),
    resolved_at integer,
    outcome_sequence integer check (outcome_sequence >= 1),
    abandoned_at integer check (abandoned_at >= created_at),
    primary key (instance_key, step_id),
    foreign key (instance_key, parent_step_id) references steps (instance_key, step_id),
    check (parent_step_id <> step_id),
    check (resolved_at >= created_at),
    check ((outcome_sequence is null) = (resolved_at is null)),
    check (case kind
        when 'run' then state is null and wake_at is null and event_name is null and timeout_at is null
            and resolved_at is null
        when 'sleep' then max_attempts is null and event_name is null and timeout_at is null
            and wake_at is not null and state is not null and state in ('waiting', 'elapsed')
            and (resolved_at is null) = (state = 'waiting')
        else max_attempts is null and wake_at is null and event_name is not null
            and state is not null and state in ('waiting', 'satisfied', 'timed_out')
            and (resolved_at is null) = (state = 'waiting') and (state <> 'timed_out' or timeout_at is not null)
    end)
) strict, without rowid;

create trigger steps_parent before insert on steps
when new.parent_step_id is not null and not exists (
    select 1 from steps where instance_key = new.instance_key and step_id = new.parent_step_id and kind = 'run')
begin select raise(abort, 'the parent of a step must be a run step of the same instance'); end;

create trigger steps_begin_open before insert on steps
when new.outcome_sequence is not null
    or (select status from instances where instance_key = new.instance_key) in ('completed', 'failed', 'cancelled')
begin select raise(abort, 'a step begins without an outcome, in an instance that has not ended'); end;

create trigger steps_never_replaced before insert on steps
when exists (select 1 from steps where instance_key = new.instance_key and step_id = new.step_id)
begin select raise(abort, 'a step is never replaced'); end;

create trigger steps_fixed_columns before update on steps
when new.instance_key <> old.instance_key or new.step_id <> old.step_id or new.ordinal <> old.ordinal
    or new.kind <> old.kind or new.parent_step_id is not old.parent_step_id
    or new.max_attempts is not old.max_attempts or new.wake_at is not old.wake_at
    or new.event_name is not old.event_name or new.timeout_at is not old.timeout_at
    or new.created_at <> old.created_at
begin select raise(abort, 'identity, kind, parent, times and limits of a step never change'); end;

create trigger steps_transitions before update of state, resolved_at, outcome_sequence on steps
when old.state <> 'waiting' and (new.state is not old.state or new.resolved_at is not old.resolved_at
    or new.outcome_sequence is not old.outcome_sequence)
begin select raise(abort, 'a step that is resolved stays so'); end;

create trigger steps_delete before delete on steps
when (select purging from instances where instance_key = old.instance_key) = 0
begin select raise(abort, 'a step may be deleted only while its instance is being purged'); end;

create table attempts (
    instance_key integer not null,
    step_id text not null,
    number integer not null check (number >= 1),
    state text not null check (state in ('started', 'succeeded', 'failed')),
    started_at integer not null check (started_at >= 0),
    ended_at integer check (ended_at >= started_at),
    result_type text check (result_type in ('json', 'none')),
    result_json text check (result_json is null or json_valid(result_json)),
    error_name text check (error_name <> ''),
    error_message text,
    error_detail text check (error_detail is null or json_valid(error_detail)),
    next_attempt_at integer check (next_attempt_at >= 0),
    counts integer not null default 1 check (counts in (0, 1)),
    outcome_sequence integer check (outcome_sequence >= 1),
    primary key (instance_key, step_id, number),
    foreign key (instance_key, step_id) references steps (instance_key, step_id),
    check (case state
        when 'started' then ended_at is null and result_type is null and result_json is null and error_name is null
            and error_message is null and error_detail is null and next_attempt_at is null
            and outcome_sequence is null
        when 'succeeded' then ended_at is not null and result_type is not null
            and (result_json is null) = (result_type = 'none') and error_name is null and error_message is null
            and error_detail is null and next_attempt_at is null and outcome_sequence is not null
        else ended_at is not null and error_message is not null and result_type is null and result_json is null
            and (next_attempt_at is null or outcome_sequence is null)
    end),
    check (counts = 1 or state = 'failed')
) strict, without rowid;

-- At most one started attempt per step, also under a bug: two callbacks of a step at once would be a double effect.
create unique index attempts_in_flight on attempts (instance_key, step_id) where state = 'started';

create trigger attempts_begin_started before insert on attempts
when new.state <> 'started'
    or (select kind from steps where instance_key = new.instance_key and step_id = new.step_id) is not 'run'
    or (select status from instances where instance_key = new.instance_key) in ('completed', 'failed', 'cancelled')
begin select raise(abort, 'an attempt must begin as started, of a run step of an instance that has not ended'); end;

create trigger attempts_never_replaced before insert on attempts
when exists (select 1 from attempts
    where instance_key = new.instance_key and step_id = new.step_id and number >= new.number)
begin select raise(abort, 'an attempt is never replaced'); end;

-- Also the way by which the second of two started attempts would replace the first.
create trigger attempts_follow_failures before insert on attempts
when new.number > 1 and (select state = 'failed' and outcome_sequence is null from attempts
    where instance_key = new.instance_key and step_id = new.step_id and number = new.number - 1) is not 1
begin select raise(abort, 'an attempt may follow only a failed one that is not the outcome of its step'); end;

create trigger attempts_transitions before update on attempts
when old.state <> 'started' or new.instance_key <> old.instance_key or new.step_id <> old.step_id
    or new.number <> old.number or new.started_at <> old.started_at
begin select raise(abort, 'an attempt that has ended stays so, and its identity never changes'); end;

create trigger attempts_delete before delete on attempts
when (select purging from instances where instance_key = old.instance_key) = 0
begin select raise(abort, 'an attempt may be deleted only while its instance is being purged'); end;

create table lifecycle_events (
    instance_key integer not null references instances,
    number integer not null check (number >= 1),
    type text not null check (
        type in ('created', 'started', 'paused', 'resumed', 'completed', 'failed', 'cancelled')
    ),
    recorded_at integer not null check (recorded_at >= 0),
    reason text,
    primary key (instance_key, number),
    check (reason is null or type = 'cancelled')
) strict, without rowid;

create trigger lifecycle_events_never_replaced before insert on lifecycle_events
when exists (select 1 from lifecycle_events where instance_key = new.instance_key and number = new.number)
begin select raise(abort, 'the lifecycle log is append-only: no line of it is replaced'); end;

create trigger lifecycle_events_update before update on lifecycle_events
begin select raise(abort, 'the lifecycle log is append-only'); end;

create trigger lifecycle_events_delete before delete on lifecycle_events
when (select purging from instances where instance_key = old.instance_key) = 0
begin select raise(abort, 'the lifecycle log is append-only'); end;

create table inbound_events (
    instance_key integer not null references instances,
    number integer not null check (number >= 1),
    name text not null check (name <> ''),
    payload text check (payload is null or json_valid(payload)),
    event_id text check (event_id <> ''),
    received_at integer not null check (received_at >= 0),
    claimed_by text,
    claimed_at integer check (claimed_at >= 0),
    primary key (instance_key, number),
    foreign key (instance_key, claimed_by) references steps (instance_key, step_id),
    check ((claimed_by is null) = (claimed_at is null))
) strict, without rowid;

-- One event per wait, and one wait per event by the primary key.
create unique index inbound_events_claim on inbound_events (instance_key, claimed_by) where claimed_by is not null;
-- A repeated event id is refused here last, after the engine and the mailbox have looked.
create unique index inbound_events_id on inbound_events (instance_key, event_id) where event_id is not null;

create trigger inbound_events_begin_unclaimed before insert on inbound_events
when new.claimed_by is not null
    or (select status from instances where instance_key = new.instance_key) in ('completed', 'failed', 'cancelled')
begin select raise(abort, 'an event is accepted first and claimed afterwards, by an instance that has not ended'); end;

create trigger inbound_events_never_replaced before insert on inbound_events
when exists (select 1 from inbound_events where instance_key = new.instance_key and number = new.number)
    or (new.event_id is not null
        and exists (select 1 from inbound_events where instance_key = new.instance_key and event_id = new.event_id))
begin select raise(abort, 'an accepted event is never replaced'); end;

create trigger inbound_events_fixed_columns before update on inbound_events
when new.instance_key <> old.instance_key or new.number <> old.number or new.name <> old.name
    or new.payload is not old.payload or new.event_id is not old.event_id or new.received_at <> old.received_at
    or old.claimed_by is not null
begin select raise(abort, 'an accepted event never changes, and a claimed one stays claimed'); end;

-- A claim by an abandoned wait would take the event from the one that still waits.
create trigger inbound_events_claimed_by_wait before update of claimed_by on inbound_events
when not exists (
    select 1 from steps where instance_key = new.instance_key and step_id = new.claimed_by
        and kind = 'wait' and state = 'satisfied' and event_name = new.name and abandoned_at is null)
begin select raise(abort, 'an event can be claimed only by a satisfied wait for its name'); end;

-- The index says the same, but "update or replace" obeys it by removing the other event. In the words of the index.
create trigger inbound_events_claim_never_replaced before update of claimed_by on inbound_events
when exists (select 1 from inbound_events where instance_key = new.instance_key and claimed_by = new.claimed_by)
begin select raise(abort, 'UNIQUE constraint failed: inbound_events.instance_key, inbound_events.claimed_by'); end;

create trigger inbound_events_delete before delete on inbound_events
when (select purging from instances where instance_key = old.instance_key) = 0
begin select raise(abort, 'an event may be deleted only while its instance is being purged'); end;

create table deliveries (
    instance_key integer primary key references instances,
    number integer not null,
    attempts integer not null default 0 check (attempts >= 0),
    next_attempt_at integer check (next_attempt_at >= 0),
    delivered_at integer check (delivered_at >= 0),
    last_error text,
    foreign key (instance_key, number) references lifecycle_events (instance_key, number),
    check ((next_attempt_at is null) = (delivered_at is not null))
) strict;

-- delivery_leases: deliveries that a start has to try again.
create index deliveries_open on deliveries (instance_key) where delivered_at is null;

create trigger deliveries_never_replaced before insert on deliveries
when exists (select 1 from deliveries where instance_key = new.instance_key)
begin select raise(abort, 'a delivery is never replaced'); end;

create trigger deliveries_delete before delete on deliveries
when (select purging from instances where instance_key = old.instance_key) = 0
begin select raise(abort, 'a delivery may be deleted only while its instance is being purged'); end;

create trigger deliveries_fixed_columns before update on deliveries
when new.instance_key <> old.instance_key or new.number <> old.number
begin select raise(abort, 'a delivery stays that of its lifecycle event'); end;

create trigger deliveries_delivered before update on deliveries
when old.delivered_at is not null
begin select raise(abort, 'what is delivered stays so'); end;

create trigger deliveries_of_an_end before insert on deliveries
when (select type from lifecycle_events where instance_key = new.instance_key and number = new.number)
    not in ('completed', 'failed', 'cancelled')
begin select raise(abort, 'a delivery tells of the end of its instance'); end;

create table mail (
    mail_id integer primary key autoincrement,
    instance_key integer not null references instances,
    kind text not null check (kind in ('create', 'event', 'pause', 'resume', 'cancel')),
    name text check (name <> ''),
    payload text check (payload is null or json_valid(payload)),
    event_id text check (event_id <> ''),
    reason text,
    sent_at integer not null check (sent_at >= 0),
    taken_at integer check (taken_at >= 0),
    outcome text,
    check ((kind = 'event') = (name is not null)),
    check (reason is null or kind = 'cancel'),
    check ((taken_at is null) = (outcome is null))
) strict;

-- mail_untaken: every poll looks here; nearly always it is empty.
create index mail_untaken on mail (mail_id) where taken_at is null;
-- mail_untaken_of, mail_guard: one probe per instance that hibernates, times out or ends.
create index mail_untaken_of on mail (instance_key, mail_id) where taken_at is null;
-- A second create changes nothing; of two processes that create at once, one meets this.
create unique index mail_one_create on mail (instance_key) where kind = 'create';
-- The same for an event that is sent twice while nobody reads the mail.
create unique index mail_event_id on mail (instance_key, event_id) where event_id is not null;

create trigger mail_to_the_living before insert on mail
when new.taken_at is not null
    or (select status from instances where instance_key = new.instance_key) in ('completed', 'failed', 'cancelled')
begin select raise(abort, 'mail is sent to an instance that has not ended, and taken afterwards'); end;

create trigger mail_never_replaced before insert on mail
when exists (select 1 from mail where mail_id = new.mail_id)
    or (new.kind = 'create' and exists (select 1 from mail where instance_key = new.instance_key and kind = 'create'))
    or exists (select 1 from mail where instance_key = new.instance_key and event_id = new.event_id)
begin select raise(abort, 'mail is never replaced'); end;

create trigger mail_fixed_columns before update on mail
when new.mail_id <> old.mail_id or new.instance_key <> old.instance_key or new.kind <> old.kind
    or new.name is not old.name or new.payload is not old.payload or new.event_id is not old.event_id
    or new.reason is not old.reason or new.sent_at <> old.sent_at or old.taken_at is not null
begin select raise(abort, 'mail never changes, and taken mail stays taken'); end;

create trigger mail_delete before delete on mail
when (select purging from instances where instance_key = old.instance_key) = 0
begin select raise(abort, 'mail may be deleted only while its instance is being purged'); end;
