"""Speed and memory beside other simulators, measured the same way for all: `python -m benchmarks`."""
