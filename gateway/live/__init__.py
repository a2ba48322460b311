"""Live events: one reader of the event streams for all subscribers of the process, and what each of them is sent."""
