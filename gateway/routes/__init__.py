"""Routes by topic; each module has one function that gives its routes."""
