"""How each kind of phantom is drawn."""
