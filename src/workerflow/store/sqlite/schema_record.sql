-- The schema that the file has now.
update workerflow_meta set schema_version = ?1;
