"""A job from its command line to its end: options, session, checkpoint, progress, dead letters."""
