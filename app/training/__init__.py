"""Rated answers with the conversations before them, as records to train on."""
