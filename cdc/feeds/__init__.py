"""Other ways out: what serves consumers from the topics and the state store, as processes apart from the daemon."""
