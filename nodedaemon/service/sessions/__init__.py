"""Sessions: greet and attach processes, carry out grants on gate pages, and take sessions back after a restart."""
