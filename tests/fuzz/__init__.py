"""A fuzzer of the Session log reader: `python -m tests.fuzz --seconds 60 --seed 1` (or `make fuzz`)."""
