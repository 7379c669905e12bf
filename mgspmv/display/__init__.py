"""Presentation: charts, numbers, and the tables that notebooks show."""
