"""How commands get answers: one file per service that they ask."""
