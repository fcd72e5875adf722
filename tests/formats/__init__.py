"""Tests of cdc.formats."""
