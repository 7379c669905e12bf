"""How things look: charts, numbers, and the tables that notebooks show."""
