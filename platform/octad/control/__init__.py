"""The control plane: it keeps runs, and moves them on."""
