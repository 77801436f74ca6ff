"""The steps that bring a database to the present tables."""
