"""The database: connection, tables, schema version, ids of clusters, nodes and devices, and retention."""
