"""Where runs are compared: one file for each kind."""
