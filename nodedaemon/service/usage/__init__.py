"""Usage records: what is recorded, the spool on disk, and the batches that go to the database."""
