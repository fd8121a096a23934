-- The schema of the file.
select schema_version from workerflow_meta;
