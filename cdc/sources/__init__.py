"""Where rows come from. Each source is a thin shell around a pure decoder: sockets here, decisions in the core."""
