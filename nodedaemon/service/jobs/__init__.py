"""Jobs on this node: their registry and identity, Prolog files, orphans, time limits."""
