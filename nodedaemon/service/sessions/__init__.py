"""Sessions: greet and attach processes, carry grants out on gate pages, and take sessions back after a restart."""
