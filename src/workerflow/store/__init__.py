"""Where instances are stored."""
