"""Sessions: attach processes, carry out grants on gate pages, and resume sessions after a restart."""
