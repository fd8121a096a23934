-- The schema that the file has now.
insert into workerflow_meta (only_row, schema_version, created_at) values (1, ?1, ?2)
on conflict (only_row) do update set schema_version = ?1;
