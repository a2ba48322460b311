"""Who may: bearer tokens, access tokens of an issuer, and how often."""
