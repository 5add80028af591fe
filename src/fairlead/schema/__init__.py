"""The border, the only place that parses input: what passes is well-formed and in range."""
