"""Where text comes from: one file per kind (see `octad.ports.data`)."""
