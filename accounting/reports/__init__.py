"""Reading: what reports, charts and job pages show, filtered by who asks. Callers get values, never rows."""
