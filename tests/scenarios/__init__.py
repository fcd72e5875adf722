"""Transcripts of a master's and a replica's talk, and the test that plays them."""
