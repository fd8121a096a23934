-- Whether the file is a database with tables, and whether they are ours.
select name from sqlite_schema where type = 'table' and name not like 'sqlite_%';
