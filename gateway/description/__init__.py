"""The OpenAPI document: schemas from the types themselves, operations by hand."""
