"""How things look: charts, numbers, and the cards that notebooks show."""
