"""Reading: reports, charts and job pages, limited to what the viewer may see. Callers get values, never rows."""
