"""Tables: read from files, described by a schema, encoded as rows."""
