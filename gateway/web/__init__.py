"""HTTP by itself: problem documents, bodies, ids in paths, preconditions, origins. Knows the contract, no server."""
