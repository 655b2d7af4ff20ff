"""Every number we claim, as a program anyone can run: `python -m benchmarks.<name>`."""
