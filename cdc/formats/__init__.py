"""Formats with a schema: schemas made from a space's form, and events in these formats."""
