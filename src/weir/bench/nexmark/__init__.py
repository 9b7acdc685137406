"""The Nexmark queries as a workload, each compared with a batch answer to the same question."""
