-- The schema that the file has first. The later ones are recorded in its row.
insert into workerflow_meta (only_row, schema_version, created_at) values (1, 0, ?1);
