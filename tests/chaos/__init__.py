"""A randomised campaign: clients under load, seeded faults, and a checker of what was promised."""
