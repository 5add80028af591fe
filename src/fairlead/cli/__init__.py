"""The command line: presentation only. Commands are imported when they are called."""
