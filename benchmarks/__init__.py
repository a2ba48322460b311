"""How fast the system is, as ratios against baselines that are measured in the same run (README.md beside this)."""
