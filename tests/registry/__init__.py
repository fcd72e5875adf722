"""Tests of cdc.registry."""
