"""Tests of Salus; docs/testing.md says what each folder holds."""
