"""The supply chain: locks, the bill of materials, known vulnerabilities."""
