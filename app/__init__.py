"""The composition root: the only package in which worker and projections meet."""
