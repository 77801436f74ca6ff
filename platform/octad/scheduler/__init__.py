"""Pure decisions: who is next, what goes where, who has to wait and why; and their simulator."""
