"""Sessions: attach, serve, grant and hand over through gate memory, and take back after a restart."""
