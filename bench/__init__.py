"""Side-by-side benchmarks: one command each, printing ratios and writing JSON and a picture."""
