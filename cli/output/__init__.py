"""How commands print: tables, CSV and JSON, times, sizes, and progress."""
