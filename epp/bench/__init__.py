"""What requests cost: benchmarks that anyone can run, and the goals that their figures are held against."""
