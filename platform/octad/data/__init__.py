"""Text sources, token shards, and the order in which samples are seen."""
