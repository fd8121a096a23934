"""The store on an SQLite file."""
