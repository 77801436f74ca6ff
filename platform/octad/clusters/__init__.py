"""Who provides a Ray cluster: one file per kind, each filling `octad.ports.clusters`."""
