-- Whether the file is an empty database, ours, or somebody else's.
select name from sqlite_schema where name not like 'sqlite_%';
