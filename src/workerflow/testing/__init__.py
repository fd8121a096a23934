"""Tools for testing workflows: an engine on a virtual clock."""
