"""Model families: one file or folder each, filling `octad.ports.models`."""
