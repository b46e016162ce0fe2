"""One file for each simulator, each with `run(workload, clock, …) -> Outcome`. Each runs in a process of its own."""
