"""Real servers for tests, each started once, on a free port of the loopback, with data that nobody keeps."""
