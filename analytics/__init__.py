"""One event schema, named SQL, and what it says about tokens, time and money."""
