"""Features: extraction by a frozen encoder, and the tables that hold the result."""
