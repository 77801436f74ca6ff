"""What runs on the cards: one process per card, plain torch inside a Ray Train worker group."""
